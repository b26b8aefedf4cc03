"""The pages of the documentation's site that are not in docs/: mkdocs calls these hooks.

Owns the reference, made from the contract, the registry's schema, the settings and the command's
own help, so that it cannot fall behind; the pages that live elsewhere in the tree, such as READMEs;
and links out of docs/, which lead to a page with the file's text. A broken link is a warning, and
the build is strict.
"""

from __future__ import annotations

import json
import logging
import posixpath
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from google.protobuf import descriptor_pb2
from google.rpc import code_pb2
from mkdocs.structure.files import File
from typer.testing import CliRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

# The tree's own, wherever mkdocs runs.
from agent_routing.v1.error_reason_options_pb2 import error_reason  # noqa: E402
from routing_service.cli.app import COMMANDS, app, load_command  # noqa: E402
from routing_service.settings.settings import SETTINGS  # noqa: E402

log: Final = logging.getLogger("mkdocs.hooks.docs_site")

# Pages of the site that are not in docs/; those that are not there (yet) are left out.
ELSEWHERE: Final = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "deploy/README.md",
    "clients/python/README.md",
    "clients/typescript/README.md",
    "clients/go/README.md",
    "clients/java/README.md",
    "tests/clients/vectors/README.md",
)
PACKAGE: Final = ".agent_routing.v1."
HELP_COLUMNS: Final = 92
# What the site shows of a file by its ending, for the colours.
LANGUAGES: Final = {
    ".py": "python",
    ".proto": "protobuf",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".toml": "toml",
    ".sql": "sql",
    ".sh": "sh",
}
_LINK: Final = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and those that live elsewhere."""
    made = {
        "reference/routing-service.md": service_page("RoutingService"),
        "reference/admin-service.md": service_page("AdminService"),
        "reference/messages.md": messages_page(),
        "reference/errors.md": errors_page(),
        "reference/registry.md": registry_page(),
        "reference/settings.md": settings_page(),
        "reference/cli.md": cli_page(),
    }
    for path in ELSEWHERE:
        if (ROOT / path).exists():
            made[path] = (ROOT / path).read_text(encoding="utf-8")
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    for path in sorted(linked_files(files)):
        files.append(File.generated(config, f"source/{path}.md", content=source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to other files of the tree to their pages of the site."""
    del config
    uri = page.file.src_uri
    known = {file.src_uri for file in files}

    def link(match: re.Match[str]) -> str:
        words, target = match.groups()
        if target.startswith(("#", "mailto:")) or "://" in target:
            return match.group()
        path, hash_mark, anchor = target.partition("#")
        if uri.startswith(("reference/", "source/")):
            return match.group()
        in_tree = posixpath.normpath(posixpath.join(posixpath.dirname(tree_path(uri)), path))
        if not (ROOT / in_tree).exists():
            if not in_tree.startswith("docs/reference/"):
                log.warning("%s links to %s, which is not there", tree_path(uri), target)
            return match.group()
        for candidate in (in_tree.removeprefix("docs/"), f"source/{in_tree}.md"):
            if candidate in known:
                to = posixpath.relpath(candidate, posixpath.dirname(uri) or ".")
                return f"[{words}]({to}{hash_mark}{anchor})"
        return words if words.startswith("`") else f"`{in_tree}`"

    return outside_fences(markdown, lambda text: _LINK.sub(link, text))


def outside_fences(markdown: str, change: object) -> str:
    """Return the page with a change applied outside its blocks of code."""
    assert callable(change)
    parts: list[str] = []
    last = 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[last : fence.start()]), fence.group()]
        last = fence.end()
    return "".join([*parts, change(markdown[last:])])


def tree_path(uri: str) -> str:
    """Return where a page of the site is in the tree."""
    return uri if uri in ELSEWHERE else f"docs/{uri}"


def linked_files(files: Files) -> set[str]:
    """Return the files of the tree that pages link to, other than pages."""
    found: set[str] = set()
    for file in files.documentation_pages():
        uri = file.src_uri
        if uri.startswith("reference/"):
            continue
        for _, target in _LINK.findall(_FENCE.sub("", file.content_string)):
            path = target.partition("#")[0]
            if not path or "://" in path or path.startswith("mailto:"):
                continue
            in_tree = posixpath.normpath(posixpath.join(posixpath.dirname(tree_path(uri)), path))
            is_page = in_tree in ELSEWHERE or in_tree.startswith("docs/") or in_tree == "README.md"
            if (ROOT / in_tree).is_file() and not is_page:
                found.add(in_tree)
    if any("README.md" in file.content_string for file in files.documentation_pages()):
        found.add("README.md")
    return found


def source_page(path: str) -> str:
    """Return a page with a file of the tree, as it is."""
    text = (ROOT / path).read_text(encoding="utf-8")
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n`````{language}\n{text}\n`````\n"


# ---- the contract ----


def contract() -> descriptor_pb2.FileDescriptorSet:
    """Return the contract with its comments."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "contract.binpb"
        buf = Path(sys.executable).parent / "buf"
        subprocess.run(
            [str(buf), "build", "protos", "--as-file-descriptor-set", "--output", str(image)],
            cwd=ROOT,
            check=True,
        )
        return descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes())


CONTRACT: Final = contract()


def comments_of(file: descriptor_pb2.FileDescriptorProto) -> dict[tuple[int, ...], str]:
    """Return each element's comment by its path in the descriptor."""
    return {
        tuple(location.path): flowing(location.leading_comments)
        for location in file.source_code_info.location
        if location.leading_comments
    }


def flowing(comment: str) -> str:
    """Return a comment as paragraphs: one line each, tables and lists left alone."""
    paragraphs: list[str] = []
    for part in re.split(r"\n\s*\n", comment.strip("\n")):
        lines = [line.removeprefix(" ") for line in part.splitlines()]
        kept = any(line.lstrip().startswith(("-", "|", "*")) for line in lines)
        paragraphs.append("\n".join(lines) if kept else " ".join(line.strip() for line in lines))
    return "\n\n".join(paragraphs)


def own_files() -> Iterator[descriptor_pb2.FileDescriptorProto]:
    """Yield the files of our package, without what they import."""
    yield from (file for file in CONTRACT.file if file.package == PACKAGE.strip("."))


def cell(text: str) -> str:
    """Return a text for a table's cell."""
    return escaped(text.replace("\n\n", "<br>").replace("\n", " ")).replace("|", "\\|")


def escaped(text: str) -> str:
    """Return a comment's text escaped for Markdown."""
    return re.sub(r"<(?!br>)", "&lt;", text.replace("[", "\\["))


def type_of(field: descriptor_pb2.FieldDescriptorProto, maps: dict[str, str]) -> str:
    """Return a field's type as the contract writes it, linked where it is ours."""
    scalar = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.type_name in maps:
        return maps[field.type_name]
    if field.type_name.startswith(PACKAGE):
        name = field.type_name.removeprefix(PACKAGE)
        shown = f"[{name}]({page_of(name)}#{name.lower().replace('.', '')})"
    else:
        shown = field.type_name.rpartition(".")[2] or scalar
    is_list = field.label == descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    return f"list of {shown}" if is_list else shown


def page_of(name: str) -> str:
    """Return the reference page that describes a message or enum."""
    if name.startswith("ErrorReason"):
        return "errors.md"
    for file in own_files():
        if name.partition(".")[0] in {each.name for each in (*file.message_type, *file.enum_type)}:
            if file.name.endswith("/routing_service.proto"):
                return "routing-service.md"
            if file.name.endswith("/admin_service.proto"):
                return "admin-service.md"
    return "messages.md"


def message_lines(
    message: descriptor_pb2.DescriptorProto,
    path: tuple[int, ...],
    comments: dict[tuple[int, ...], str],
    prefix: str = "",
) -> Iterator[str]:
    """Yield the description of a message: what it is, and its fields."""
    name = prefix + message.name
    yield f"### {name}\n\n{escaped(comments.get(path, ''))}\n"
    maps = {}
    for nested in message.nested_type:
        if nested.options.map_entry:
            key, value = nested.field
            full = f"{PACKAGE}{name}.{nested.name}"
            maps[full] = f"map of {type_of(key, {})} to {type_of(value, {})}"
    if message.field:
        yield "| field | type | number | what it is |\n|---|---|---|---|"
        for index, field in enumerate(message.field):
            one_of = (
                f" (one of {message.oneof_decl[field.oneof_index].name})"
                if field.HasField("oneof_index") and not field.proto3_optional
                else " (optional)"
                if field.proto3_optional
                else ""
            )
            text = cell(comments.get((*path, 2, index), ""))
            yield f"| `{field.name}` | {type_of(field, maps)}{one_of} | {field.number} | {text} |"
        yield ""
    for index, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from message_lines(nested, (*path, 3, index), comments, f"{name}.")
    for index, enum in enumerate(message.enum_type):
        yield from enum_lines(enum, (*path, 4, index), comments, f"{name}.")


def enum_lines(
    enum: descriptor_pb2.EnumDescriptorProto,
    path: tuple[int, ...],
    comments: dict[tuple[int, ...], str],
    prefix: str = "",
) -> Iterator[str]:
    """Yield the description of an enum and its values."""
    yield f"### {prefix}{enum.name}\n\n{escaped(comments.get(path, ''))}\n"
    yield "| value | number | what it says |\n|---|---|---|"
    for index, value in enumerate(enum.value):
        text = cell(comments.get((*path, 2, index), ""))
        yield f"| `{value.name}` | {value.number} | {text} |"
    yield ""


def service_page(name: str) -> str:
    """Return the page of a service: its calls, then the messages of its file."""
    lines: list[str] = []
    for file in own_files():
        comments = comments_of(file)
        for number, service in enumerate(file.service):
            if service.name != name:
                continue
            lines.append(f"# {name}\n\n{escaped(comments.get((6, number), ''))}\n\n## Calls\n")
            for index, method in enumerate(service.method):
                asked, answered = (
                    f"[{kind.removeprefix(PACKAGE)}]({page_of(kind.removeprefix(PACKAGE))}"
                    f"#{kind.removeprefix(PACKAGE).lower()})"
                    for kind in (method.input_type, method.output_type)
                )
                asked = f"stream of {asked}" if method.client_streaming else asked
                answered = f"stream of {answered}" if method.server_streaming else answered
                text = escaped(comments.get((6, number, 2, index), ""))
                lines.append(f"### {method.name}\n\n{asked} → {answered}\n\n{text}\n")
            lines.append("## Messages\n")
            for index, message in enumerate(file.message_type):
                lines += message_lines(message, (4, index), comments)
            for index, enum in enumerate(file.enum_type):
                lines += enum_lines(enum, (5, index), comments)
    return "\n".join(lines)


def messages_page() -> str:
    """Return the page of the messages that the services share."""
    lines = [
        "# Shared messages\n\nWhat requests, answers and watches of both services are made of.\n"
    ]
    for file in own_files():
        if file.service or file.name.endswith("error_reason.proto"):
            continue
        comments = comments_of(file)
        lines.append(f"## {Path(file.name).name}\n")
        for index, message in enumerate(file.message_type):
            lines += message_lines(message, (4, index), comments)
        for index, enum in enumerate(file.enum_type):
            lines += enum_lines(enum, (5, index), comments)
    return "\n".join(lines)


def reason_options(value: descriptor_pb2.EnumValueDescriptorProto) -> str:
    """Return the options of an error reason; empty for a value without options."""
    options = value.options.Extensions[error_reason]
    if not options.remedy:
        return ""
    repeat = "yes" if options.retryable else "no"
    code = code_pb2.Code.Name(options.code)
    return (
        f"\n\n**Code:** {code}\n\n**Retryable:** {repeat}\n\n**Remedy:** {escaped(options.remedy)}"
    )


def errors_page() -> str:
    """Return the page of the error reasons, a heading each, so that they can be linked."""
    lines = ["# Errors\n"]
    for file in own_files():
        comments = comments_of(file)
        for number, enum in enumerate(file.enum_type):
            if enum.name != "ErrorReason":
                continue
            lines.append(f"{escaped(comments[5, number])}\n\n## ErrorReason\n")
            for index, value in enumerate(enum.value):
                text = escaped(comments[5, number, 2, index])
                for word in ("Metadata:", "Example:"):
                    text = re.sub(rf"\s+{word}", f"\n\n**{word}**", text)
                text += reason_options(value)
                lines.append(f"### {value.name.removeprefix('ERROR_REASON_')}\n\n{text}\n")
    return "\n".join(lines)


# ---- the registry file, the settings, the command ----


def registry_page() -> str:
    """Return the page of the registry file's keys, from its JSON Schema."""
    schema = json.loads(
        (ROOT / "routing_service" / "registry" / "schema.json").read_text(encoding="utf-8")
    )
    lines = [
        f"# {schema['title']}\n\n{escaped(schema['description'])}\n",
        "`agent-routing check FILE` checks a file against this, and what no schema can say.\n",
        "`agent-routing check --schema` prints the schema for editors.\n",
        "## Keys of the file\n",
        *schema_lines(schema, schema),
        "## Keys of an agent\n",
        *schema_lines(schema["$defs"]["agent"], schema),
    ]
    return "\n".join(lines)


def schema_lines(part: dict[str, object], schema: dict[str, object]) -> Iterator[str]:
    """Yield a table of an object's keys, and one more for each key that is an object."""
    properties = part.get("properties", {})
    assert isinstance(properties, dict)
    yield "| key | what it is | expected |\n|---|---|---|"
    nested: list[tuple[str, dict[str, object]]] = []
    for name, value in properties.items():
        meant = value
        if "$ref" in value:
            meant = schema["$defs"][value["$ref"].rpartition("/")[2]] | value  # type: ignore[index]
        what, expected = cell(value.get("description", "")), cell(meant.get("x-expects", ""))
        yield f"| `{name}` | {what} | {expected} |"
        if meant.get("properties"):
            nested.append((name, meant))
    yield ""
    for name, value in nested:
        yield f"### {name}\n"
        yield from schema_lines(value, schema)


def settings_page() -> str:
    """Return the page of the server's settings."""
    lines = [
        "# Settings\n",
        "Of `agent-routing serve`. A flag wins over the variable, and that over the key of the",
        "TOML file that `--config` names.\n",
        "| flag | variable | key | default | what it is |\n|---|---|---|---|---|",
    ]
    for setting in SETTINGS.values():
        default = f"`{setting.default}`" if setting.default not in ("", None) else ""
        lines.append(
            f"| `{setting.flag}` | `{setting.variable}` | `{setting.name}` | {default} | "
            f"{cell(setting.help)} |"
        )
    return "\n".join([*lines, ""])


def cli_page() -> str:
    """Return the page of the command, as its own help says it."""
    runner = CliRunner(env={"COLUMNS": str(HELP_COLUMNS), "NO_COLOR": "1", "TERM": "dumb"})
    lines = ["# The command agent-routing\n", f"```text\n{helped(runner, [])}```\n"]
    for row in COMMANDS:
        name = row.name
        lines.append(f"## {name}\n\n```text\n{helped(runner, [name])}```\n")
        inner = getattr(load_command(name), "commands", {})
        lines += [
            f"### {name} {inside}\n\n```text\n{helped(runner, [name, inside])}```\n"
            for inside in inner
        ]
    return "\n".join(lines)


def helped(runner: CliRunner, words: list[str]) -> str:
    """Return the help of a command."""
    return runner.invoke(app, [*words, "--help"], prog_name="agent-routing").output
