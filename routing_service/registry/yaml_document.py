"""A YAML text as plain data in which every value knows its line and column.

Its rule: reading any text ends soon, in plain data (dict, list, str, int, float, bool, None) or in
a list of problems. Duplicate keys, tags and directives are refused, and the expansion of aliases is
bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ruamel.yaml.events import Event

# A few hundred agents with long descriptions are a tenth of this, and it is read in seconds.
TEXT_BYTES_MAX = 1024 * 1024

# What aliases may expand a text to: ten times the nodes of the largest registry.
NODES_MAX = 300_000

# Entries of one list or mapping: as many as the longest list that the schema takes. A longer one is
# refused as its next entry begins, before the rest of the file is read.
ENTRIES_MAX = 512

# Deeper than any document of ours; recursion below relies on it.
DEPTH_MAX = 32

# Characters of a tag that an error message repeats.
_TAG_SHOWN_MAX = 64

# Numbers that a reader of the file could check by eye; more digits stay text.
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]{1,18}\.[0-9]{0,18}|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,2})?")

# The core schema of YAML 1.2, which unlike 1.1 leaves yes, no, on and off alone.
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}

# Part of the parser's message for a mistake -> its usual remedy.
_SYNTAX_REMEDIES = (
    (r"'\t'", "indent with spaces; tabs are not allowed in YAML"),
    (
        "cannot start any token",
        "put the value in quotes; it starts with a character that YAML reserves",
    ),
    (
        "mapping values are not allowed",
        "check the indentation, and put a value that contains ': ' in quotes",
    ),
    ("while scanning a quoted scalar", "close the quotation mark"),
    ("stream end", "close the bracket or brace"),
)

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, order=True)
class FileProblem:
    """One problem of a file. Lines and columns count from 1; 0 if it has no place."""

    line: int
    column: int
    # Where in the document, such as agents[2].handoff_to[0]; empty for the document as a whole.
    path: str
    # What is wrong, with the value.
    message: str
    # What to do about it.
    remedy: str

    def __str__(self) -> str:
        """Return the problem on one line, in the form of compilers."""
        place = f"{self.path}: " if self.path else ""
        where = f"{self.line}:{self.column}: " if self.line else ""
        return f"{where}{place}{self.message}; {self.remedy}"


@dataclass(slots=True)
class Document:
    """The data of a text and its places. ``data`` is only meaningful without problems."""

    data: object = None
    problems: list[FileProblem] = field(default_factory=list)
    # Where each value starts, and each key of a mapping, and how a scalar was written.
    value_marks: dict[Path, tuple[int, int]] = field(default_factory=dict)
    key_marks: dict[Path, tuple[int, int]] = field(default_factory=dict)
    written: dict[Path, str] = field(default_factory=dict)
    # Keys between { and } that have no value: mostly the rest of a text with a comma in it.
    bare_keys: set[Path] = field(default_factory=set)

    def problem(
        self, path: Path, message: str, remedy: str, *, on_key: bool = False
    ) -> FileProblem:
        """Return a problem placed at a value, or at its key; at the nearest parent if missing."""
        marks = self.key_marks if on_key else self.value_marks
        at = path
        while at and at not in marks:
            marks = self.value_marks
            at = at[:-1]
        line, column = marks.get(at, (1, 1))
        return FileProblem(line, column, path_text(path), message, remedy)

    def value_at(self, path: Path) -> object:
        """Return the value at a path that exists."""
        data = self.data
        for step in path:
            data = cast("Any", data)[step]
        return data


def path_text(path: Path) -> str:
    """Return a path as people write it: agents[2].handoff_to[0]."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


@dataclass(slots=True)
class _Node:
    """A value before aliases are expanded; children hold (key, node), the key empty in lists."""

    kind: str
    mark: tuple[int, int]
    written: str = ""
    is_plain: bool = False
    # Written between brackets or braces rather than by indentation.
    is_flow: bool = False
    children: list[tuple[_Node | None, _Node]] = field(default_factory=list)


class _Unreadable(Exception):
    """The text cannot be read beyond this place."""

    def __init__(self, mark: tuple[int, int], message: str, remedy: str) -> None:
        super().__init__(message)
        self.problem = FileProblem(*mark, "", message, remedy)


def read_document(text: str) -> Document:
    """Read one YAML document. Everything wrong with it is in the result's problems.

    A mistake in the YAML itself ends the reading, so it is the last of the problems.
    """
    document = Document()
    text = text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > TEXT_BYTES_MAX:
        message = f"the file has {size_bytes} bytes; {TEXT_BYTES_MAX} are read at most"
        document.problems.append(FileProblem(1, 1, "", message, "shorten descriptions or examples"))
        return document
    try:
        root = _Composer(document).compose(YAML(typ="safe", pure=True).parse(text))
        document.data = _expand(root, (), document)
    except _Unreadable as error:
        document.problems.append(error.problem)
    except ReaderError as error:
        document.problems.append(_reader_problem(error, text))
    except YAMLError as error:
        document.problems.append(_syntax_problem(error))
    return document


def _reader_problem(error: ReaderError, text: str) -> FileProblem:
    before = text[: error.position]
    line = before.count("\n") + 1
    column = error.position - (before.rfind("\n") + 1) + 1
    code = error.character if isinstance(error.character, int) else ord(error.character)
    return FileProblem(
        line, column, "", f"the character U+{code:04X} is not allowed in YAML", "remove it"
    )


def _syntax_problem(error: YAMLError) -> FileProblem:
    line, column, message = 1, 1, "it is not YAML"
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        if mark is not None:
            line, column = mark.line + 1, mark.column + 1
        said = (error.context, error.problem)
        message = f"the YAML cannot be read: {', '.join(word for word in said if word)}"
    remedy = next(
        (remedy for word, remedy in _SYNTAX_REMEDIES if word in message),
        "correct the YAML here; the rest of the file was not read",
    )
    return FileProblem(line, column, "", message, remedy)


def _mark(event: Event) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


@dataclass(slots=True)
class _Composer:
    """Events to nodes. It keeps its own stack, so that depth costs none of Python's."""

    document: Document
    root: _Node | None = None
    # Mappings and sequences that have begun, each with its anchor and the key that awaits a value.
    open_nodes: list[_Node] = field(default_factory=list)
    open_anchors: list[str | None] = field(default_factory=list)
    waiting_keys: list[_Node | None] = field(default_factory=list)
    # Complete values only: an alias inside its own value would never end.
    anchors: dict[str, _Node] = field(default_factory=dict)
    documents: int = 0

    def compose(self, events: Iterator[Event]) -> _Node:
        """Return the root of the one document that the events describe."""
        for event in events:
            match event:
                case DocumentStartEvent():
                    self.documents += 1
                    _check_document_start(event, self.documents, self.document)
                case MappingStartEvent() | SequenceStartEvent():
                    self.open_collection(event)
                case MappingEndEvent() | SequenceEndEvent():
                    self.waiting_keys.pop()
                    self.add(self.open_nodes.pop(), self.open_anchors.pop())
                case ScalarEvent():
                    _check_tag(event, self.document)
                    written = _with_whole_characters(event)
                    node = _Node("scalar", _mark(event), written, event.implicit[0])
                    self.add(node, event.anchor)
                case AliasEvent():
                    self.add(_aliased(event, self.anchors), None)
        if self.root is None:
            raise _Unreadable((1, 1), "the file is empty", "write a document into it")
        return self.root

    def open_collection(self, event: MappingStartEvent | SequenceStartEvent) -> None:
        if len(self.open_nodes) >= DEPTH_MAX:
            raise _Unreadable(_mark(event), _TOO_DEEP, "nest less")
        _check_tag(event, self.document)
        kind = "mapping" if isinstance(event, MappingStartEvent) else "sequence"
        self.open_nodes.append(_Node(kind, _mark(event), is_flow=bool(event.flow_style)))
        self.open_anchors.append(event.anchor)
        self.waiting_keys.append(None)

    def add(self, node: _Node, anchor: str | None) -> None:
        """Add a complete value: as the root, to a list, as a key or as its value."""
        if anchor is not None:
            self.anchors[anchor] = node
        if not self.open_nodes:
            self.root = self.root or node
            return
        if len(self.open_nodes[-1].children) >= ENTRIES_MAX:
            raise self.too_long(node)
        if self.open_nodes[-1].kind == "sequence":
            self.open_nodes[-1].children.append((None, node))
        elif self.waiting_keys[-1] is None:
            self.waiting_keys[-1] = node
        else:
            self.open_nodes[-1].children.append((self.waiting_keys[-1], node))
            self.waiting_keys[-1] = None

    def too_long(self, node: _Node) -> _Unreadable:
        """Return the refusal of a list or mapping that goes on with a node."""
        above = self.waiting_keys[-2] if len(self.waiting_keys) > 1 else None
        name = f"{above.written} has" if above is not None else "the file has a part with"
        message = f"{name} more than {ENTRIES_MAX} entries; the rest was not read"
        return _Unreadable(node.mark, message, f"keep at most {ENTRIES_MAX}")


_TOO_DEEP = f"the document nests deeper than {DEPTH_MAX} levels"


def _aliased(event: AliasEvent, anchors: dict[str, _Node]) -> _Node:
    """Return the value of an alias. An anchor counts only once its value is complete."""
    node = anchors.get(event.anchor)
    if node is None:
        message = f'the alias "*{event.anchor}" stands for no complete value before it'
        raise _Unreadable(_mark(event), message, "write the value out, or put it in quotes")
    return node


def _with_whole_characters(event: ScalarEvent) -> str:
    """Return a scalar in which escaped surrogates are joined: JSON writes an emoji as a pair."""
    value = str(event.value)
    try:
        return value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        message = "the text has half of an escaped character, which no text can hold"
        raise _Unreadable(_mark(event), message, "write the character itself") from None


def _check_document_start(event: DocumentStartEvent, documents: int, document: Document) -> None:
    if documents > 1:
        raise _Unreadable(
            _mark(event), "a second document starts here", "keep one document in a file"
        )
    if event.tags or (event.version is not None and tuple(event.version) != (1, 2)):
        document.problems.append(
            FileProblem(
                *_mark(event),
                "",
                "the file has a %YAML or %TAG directive",
                "remove it; files are read as YAML 1.2",
            )
        )


def _check_tag(event: ScalarEvent | MappingStartEvent | SequenceStartEvent, doc: Document) -> None:
    if event.tag is not None:
        message = f'the tag "{str(event.tag)[:_TAG_SHOWN_MAX]}" is not read'
        remedy = "remove the tag; put a value in quotes to make it a text"
        doc.problems.append(FileProblem(*_mark(event), "", message, remedy))


def _expand(node: _Node, path: Path, document: Document) -> object:
    """Return a node as plain data, and record the place of each part."""
    if len(document.value_marks) >= NODES_MAX:
        message = f"the file expands to more than {NODES_MAX} values"
        raise _Unreadable(node.mark, message, "write values out instead of using aliases")
    if len(path) > DEPTH_MAX:
        raise _Unreadable(node.mark, _TOO_DEEP, "nest less")
    document.value_marks[path] = node.mark
    if node.kind == "scalar":
        document.written[path] = node.written
        return _scalar(node)
    if node.kind == "sequence":
        return [_expand(child, (*path, i), document) for i, (_, child) in enumerate(node.children)]
    return _expand_mapping(node, path, document)


def _expand_mapping(node: _Node, path: Path, document: Document) -> dict[str, object]:
    data: dict[str, object] = {}
    for key, child in node.children:
        assert key is not None  # Mappings get their children in pairs.
        if key.kind != "scalar":
            message = f"a {key.kind} is used as a key"
            raise _Unreadable(key.mark, message, "use a word as the key, and quote values with {")
        name = key.written
        if name in data:
            first_line = document.key_marks[*path, name][0]
            message = f'the key "{name}" is already on line {first_line}'
            where = path_text((*path, name))
            remedy = "keep one of the two"
            document.problems.append(FileProblem(*key.mark, where, message, remedy))
            continue
        document.key_marks[*path, name] = key.mark
        if node.is_flow and child.is_plain and not child.written:
            document.bare_keys.add((*path, name))
        data[name] = _expand(child, (*path, name), document)
    return data


def _scalar(node: _Node) -> object:
    if not node.is_plain:
        return node.written
    if node.written in _WORDS:
        return _WORDS[node.written]
    if _INTEGER.fullmatch(node.written):
        return int(node.written)
    if _FLOAT.fullmatch(node.written):
        return float(node.written)
    return node.written
