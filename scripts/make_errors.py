"""Generate the clients' error classes from error_reason.proto, or check that they are current.

    .venv/bin/python scripts/make_errors.py [--check]

Owns what the contract does not say about an error: the names of the families, and the metadata that
an error class offers as properties. Code, remedy and description of each reason come from
error_reason.proto, so a new reason needs no change here. Writes code that each language's formatter
leaves as it is.
"""

import argparse
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUF = Path(sys.executable).parent / "buf"
OPTIONS = "[agent_routing.v1.error_reason]"
PREFIX = "ERROR_REASON_"
WIDTH = 100
USAGE = (
    "Catch a family or a reason, and never parse a message. A reason that this release does not"
    " know is"
)
NOTICE = "Generated from error_reason.proto by scripts/make_errors.py. Do not edit."

FAMILIES: Mapping[str, tuple[str, str]] = {
    "INVALID_ARGUMENT": ("InvalidRequest", "The same request can never succeed."),
    "NOT_FOUND": ("NotFound", "Something that the request names does not exist."),
    "FAILED_PRECONDITION": (
        "PreconditionFailed",
        "The session is in a state that does not allow the call.",
    ),
    "PERMISSION_DENIED": ("PermissionDenied", "The credential does not allow the call."),
    "RESOURCE_EXHAUSTED": ("ResourceExhausted", "A limit was exceeded."),
    "UNAVAILABLE": (
        "Unavailable",
        "The service did not answer. A change may still have been made.",
    ),
}
"""Base classes of reasons with the same code: the code's name, the class, what it means."""

STAND_ALONE: Mapping[str, str] = {
    "DEADLINE_EXCEEDED": "DEADLINE",
    "UNAUTHENTICATED": "UNAUTHENTICATED",
    "INTERNAL": "INTERNAL",
    "UNIMPLEMENTED": "NOT_IMPLEMENTED",
}
"""Codes whose unknown reasons are of the class of a known one."""

NAMES: Mapping[str, str] = {
    "DEADLINE": "DeadlineExceeded",
    "INTERNAL": "InternalError",
    "NOT_IMPLEMENTED": "Unimplemented",
}
"""Classes that are not named as their reason is."""

GO_NAMES: Mapping[str, str] = {
    "DEADLINE": "DeadlinePassed",
    "REQUEST_ID_REUSED": "RequestIDReused",
}
"""Go's constants that are not named as their reason is."""

TEXT, REVISION, NAMES_OF_VIOLATIONS = "text", "revision", "names of violations"


@dataclass(frozen=True, slots=True)
class Accessor:
    """A property of an error class.

    name: in snake case. key: in the metadata. kind: TEXT, REVISION or NAMES_OF_VIOLATIONS.
    """

    name: str
    key: str
    says: str
    kind: str = TEXT


ERROR_ID = Accessor("error_id", "error_id", "The id under which the server's log has the cause.")
ACCESSORS: Mapping[str, Sequence[Accessor]] = {
    "INVALID_FIELD": [
        Accessor(
            "fields",
            "",
            'The paths of the bad fields, such as "task_id" or "items[2].uri".',
            NAMES_OF_VIOLATIONS,
        )
    ],
    "UNKNOWN_SESSION": [Accessor("session_id", "session_id", "The session of the request.")],
    "UNKNOWN_AGENT": [Accessor("agent_id", "agent_id", "The agent of the request.")],
    "UNKNOWN_TASK": [Accessor("task_id", "task_id", "The task of the request.")],
    "HANDOFF_REFUSED": [
        Accessor(
            "rules",
            "",
            "The names of the rules that refused, in the order of their evaluation.",
            NAMES_OF_VIOLATIONS,
        ),
        Accessor("agent_id", "agent_id", "The target of the handoff."),
        Accessor("from_agent_id", "from_agent_id", "The agent that wanted to hand over."),
    ],
    "TASK_OPEN": [Accessor("open_task_id", "open_task_id", "The task that is open.")],
    "TURN_OPEN": [Accessor("open_request_id", "request_id", "The request that is not answered.")],
    "REVISION_MISMATCH": [
        Accessor(
            "expected", "expected_revision", "The revision that the request expected", REVISION
        ),
        Accessor("actual", "revision", "The revision of the session", REVISION),
    ],
    "SCOPE_MISSING": [Accessor("scope", "scope", "The scope that the credential lacks.")],
    "WATCH_TOO_SLOW": [Accessor("revision", "revision", "The last revision sent", REVISION)],
    "REVISION_COMPACTED": [
        Accessor("oldest_revision", "oldest_revision", "The oldest revision kept", REVISION)
    ],
    "STATE_CORRUPT": [ERROR_ID],
    "INTERNAL": [ERROR_ID],
}
"""What the class of a reason offers of the metadata, in every language. A text that is missing is
empty; for a missing revision each language has its own value, which its generator adds."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason of the contract. says: what has happened, in sentences."""

    reason: str
    code: str
    is_retryable: bool
    says: str
    remedy: str

    @property
    def name(self) -> str:
        """The name of its class."""
        return NAMES.get(self.reason, camel(self.reason))

    @property
    def go_name(self) -> str:
        """The name of its constant in Go."""
        return GO_NAMES.get(self.reason, camel(self.reason))

    @property
    def summary(self) -> str:
        """The first sentence."""
        return self.says.partition(". ")[0].removesuffix(".") + "."

    @property
    def rest(self) -> str:
        """What follows the first sentence; may be empty."""
        return self.says.partition(". ")[2]

    @property
    def advice(self) -> str:
        """Code and remedy."""
        repeat = ", retryable" if self.is_retryable else ""
        return f"Code {self.code}{repeat}. Remedy: {self.remedy}"

    @property
    def accessors(self) -> Sequence[Accessor]:
        """The properties of its class."""
        return ACCESSORS.get(self.reason, ())


def camel(name: str) -> str:
    """INVALID_FIELD or invalid_field → InvalidField."""
    return name.title().replace("_", "")


def lower_camel(name: str) -> str:
    """Return invalidField for invalid_field."""
    return name[0] + camel(name)[1:]


def read_reasons() -> list[Reason]:
    """Return the reasons of the contract, in its order. Raises ValueError for an incomplete one."""
    built = subprocess.run(
        [BUF, "build", "protos", "--output", "-#format=json"],
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    files = json.loads(built.stdout)["file"]
    file = next(each for each in files if each["name"].endswith("/error_reason.proto"))
    comments = {
        tuple(location.get("path", ())): location.get("leadingComments", "")
        for location in file["sourceCodeInfo"]["location"]
    }
    found = []
    for index, value in enumerate(file["enumType"][0]["value"][1:], start=1):
        options = value.get("options", {}).get(OPTIONS, {})
        description = comments[5, 0, 2, index].partition("\n\n")[0]
        reason = Reason(
            reason=value["name"].removeprefix(PREFIX),
            code=options.get("code", ""),
            is_retryable=options.get("retryable", False),
            says=" ".join(description.split()),
            remedy=options.get("remedy", ""),
        )
        check(reason)
        found.append(reason)
    return found


def check(reason: Reason) -> None:
    """Raise ValueError for a reason whose classes could not be generated."""
    if not (reason.code and reason.remedy and reason.says):
        raise ValueError(
            f"{PREFIX}{reason.reason} needs a comment, and the options code and remedy"
        )
    if len(reason.summary) > WIDTH - 10:
        raise ValueError(
            f"{PREFIX}{reason.reason}: the first sentence of its comment has {len(reason.summary)}"
            f" characters; at most {WIDTH - 10} fit into one line of a docstring"
        )
    if reason.code == "UNAVAILABLE" and not reason.is_retryable:
        raise ValueError(f"{PREFIX}{reason.reason}: clients repeat UNAVAILABLE; set retryable")


def by_family(reasons: Sequence[Reason]) -> list[tuple[str, list[Reason]]]:
    """Return the reasons by code, in the order in which the contract first has each code."""
    codes = dict.fromkeys(reason.code for reason in reasons)
    return [(code, [each for each in reasons if each.code == code]) for code in codes]


def family_classes(reasons: Sequence[Reason]) -> dict[str, str]:
    """Return the class that a reason which a client does not know has, by code."""
    own = {each.reason: each.name for each in reasons}
    families = {code: name for code, (name, _) in FAMILIES.items()}
    return families | {code: own[reason] for code, reason in STAND_ALONE.items()}


def tree(reasons: Sequence[Reason], root: str) -> list[str]:
    """Return the classes as a tree, one family a line."""
    lines = [root]
    for code, members in by_family(reasons):
        if code not in FAMILIES:
            lines += [f"  {each.name}" for each in members]
            continue
        names = "  ".join(each.name for each in members)
        lines += textwrap.wrap(
            names,
            WIDTH - 8,
            initial_indent=f"  {FAMILIES[code][0]:<22} ",
            subsequent_indent=" " * 25,
        )
    return lines


def wrapped(text: str, indent: str) -> list[str]:
    """Return a text in lines that begin with the indent and are at most WIDTH wide."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


# ---- Python ----


def python(reasons: Sequence[Reason]) -> str:
    """Return the module of the Python client's errors."""
    names = [each.name for each in reasons] + [name for name, _ in FAMILIES.values()]
    public = [*sorted({"RoutingError", "Violation", *names})]
    lines = [
        '"""What can go wrong with a call, as exceptions.',
        "",
        NOTICE,
        "",
        *wrapped(f"{USAGE} raised as the family of its code.", ""),
        "",
        *(f"    {line}" for line in tree(reasons, "RoutingError")),
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from collections.abc import Mapping",
        "from typing import Final",
        "",
        "import grpc",
        "",
        "from agent_routing.routing_error import RoutingError, Violation",
        "",
        "__all__ = [",
        *(f'    "{name}",' for name in ["ERRORS_BY_CODE", "ERRORS_BY_REASON", *public]),
        "]",
    ]
    for code, members in by_family(reasons):
        base = "RoutingError"
        if code in FAMILIES:
            base, says = FAMILIES[code]
            lines += ["", "", f"class {base}(RoutingError):", f'    """{code}: {lower(says)}"""']
        for each in members:
            lines += ["", "", *python_class(each, base)]
    lines += [
        "",
        "",
        "ERRORS_BY_REASON: Final[Mapping[str, type[RoutingError]]] = {",
        *(f'    "{each.reason}": {each.name},' for each in reasons),
        "}",
        '"""Every reason of the contract."""',
        "",
        "ERRORS_BY_CODE: Final[Mapping[grpc.StatusCode, type[RoutingError]]] = {",
        *(
            f"    grpc.StatusCode.{code}: {name},"
            for code, name in sorted(family_classes(reasons).items())
        ),
        "}",
        '"""The class of an unknown reason, by code; RoutingError for other codes."""',
    ]
    return "\n".join(lines) + "\n"


def lower(sentence: str) -> str:
    """Return a sentence as it stands after a colon."""
    return sentence[0].lower() + sentence[1:]


def python_class(reason: Reason, base: str) -> Iterable[str]:
    """Yield the lines of a class."""
    yield f"class {reason.name}({base}):"
    yield f'    """{reason.summary}'
    yield ""
    if reason.rest:
        yield from wrapped(reason.rest, "    ")
        yield ""
    yield from wrapped(reason.advice, "    ")
    yield '    """'
    kinds = {
        TEXT: ("str", 'return self.metadata.get("{key}", "")'),
        REVISION: ("int | None", 'return self._number("{key}")'),
        NAMES_OF_VIOLATIONS: (
            "tuple[str, ...]",
            "return tuple(violation.name for violation in self.violations)",
        ),
    }
    for accessor in reason.accessors:
        kind, body = kinds[accessor.kind]
        yield ""
        yield "    @property"
        yield f"    def {accessor.name}(self) -> {kind}:"
        yield f'        """{said(accessor, "None")}"""'
        yield f"        {body.format(key=accessor.key)}"


def said(accessor: Accessor, missing: str) -> str:
    """Return what a property is. missing: what a revision is that the error does not have."""
    if accessor.kind == REVISION:
        return f"{accessor.says}; {missing} if the error does not say."
    return accessor.says


# ---- TypeScript ----


def typescript(reasons: Sequence[Reason]) -> str:
    """Return the module of the TypeScript client's errors."""
    lines = [
        f"// {NOTICE}",
        "//",
        *wrapped(
            f"What can go wrong with a call. {USAGE} thrown as the family of its code.", "// "
        ),
        "//",
        *(f"//   {line}" for line in tree(reasons, "RoutingError")),
        "",
        'import { Code } from "@connectrpc/connect";',
        'import { RoutingError, type RoutingErrorClass } from "./routingError.js";',
        "",
        'export * from "./routingError.js";',
    ]
    for code, members in by_family(reasons):
        base = "RoutingError"
        if code in FAMILIES:
            base, says = FAMILIES[code]
            lines += ["", f"/** {code}: {lower(says)} */"]
            lines += [f"export class {base} extends RoutingError {{}}"]
        for each in members:
            lines += ["", *typescript_class(each, base)]
    lines += [
        "",
        "/** Every reason of the contract. */",
        "export const ERRORS_BY_REASON: Readonly<Record<string, RoutingErrorClass>> = {",
        *(f"  {each.reason}: {each.name}," for each in reasons),
        "};",
        "",
        "/** The class of an unknown reason, by code; RoutingError for other codes. */",
        "export const ERRORS_BY_CODE: Readonly<Partial<Record<Code, RoutingErrorClass>>> = {",
        *(
            f"  [Code.{camel(code)}]: {name},"
            for code, name in sorted(family_classes(reasons).items())
        ),
        "};",
    ]
    return "\n".join(lines) + "\n"


def typescript_class(reason: Reason, base: str) -> Iterable[str]:
    """Yield the lines of a class."""
    yield from doc(reason, "")
    head = f"export class {reason.name} extends {base} {{"
    kinds = {
        TEXT: ("string", 'return this.text("{key}");'),
        REVISION: ("bigint | undefined", 'return this.revisionAt("{key}");'),
        NAMES_OF_VIOLATIONS: (
            "string[]",
            "return this.violations.map((violation) => violation.name);",
        ),
    }
    if not reason.accessors:
        yield head + "}"
        return
    yield head
    for index, accessor in enumerate(reason.accessors):
        kind, body = kinds[accessor.kind]
        if index:
            yield ""
        yield f"  /** {said(accessor, 'undefined')} */"
        override = "override " if accessor.name == "session_id" else ""
        yield f"  {override}get {lower_camel(accessor.name)}(): {kind} {{"
        yield f"    {body.format(key=accessor.key)}"
        yield "  }"
    yield "}"


def doc(reason: Reason, indent: str, between: str = "") -> Iterable[str]:
    """Yield a comment of Java or TypeScript. between: what begins its second paragraph."""
    yield f"{indent}/**"
    yield from wrapped(reason.says, f"{indent} * ")
    yield f"{indent} *"
    yield from wrapped(between + reason.advice, f"{indent} * ")
    yield f"{indent} */"


# ---- Go ----


def go(reasons: Sequence[Reason]) -> str:
    """Return the file of the Go client's reasons, and of the error types that read metadata."""
    typed = [each for each in reasons if each.accessors]
    lines = [
        "// Code generated from error_reason.proto by scripts/make_errors.py. DO NOT EDIT.",
        "",
        "package agentrouting",
        "",
        "// The reasons of the contract.",
        "const (",
    ]
    for index, each in enumerate(reasons):
        if index:
            lines.append("")
        lines += wrapped(f"{each.go_name}: {lower(each.says)}", "\t// ")
        lines += wrapped(each.advice, "\t// ")
        lines.append(f'\t{each.go_name} Reason = "{each.reason}"')
    lines += [
        ")",
        "",
        "// As returns the error as the type of its reason.",
        "func (e *RoutingError) As(target any) bool {",
        "\tswitch wanted := target.(type) {",
    ]
    for each in typed:
        kind = f"{each.go_name}Error"
        lines.append(f"\tcase **{kind}:")
        lines.append(f"\t\treturn as(e, {each.go_name}, func() {{ *wanted = &{kind}{{e}} }})")
    lines += ["\t}", "\treturn false", "}"]
    for each in typed:
        kind = f"{each.go_name}Error"
        lines.append("")
        lines.append(f"// {kind} is a RoutingError with the reason {each.go_name}.")
        lines.append(f"type {kind} struct{{ *RoutingError }}")
        for accessor in each.accessors:
            lines += ["", *go_method(kind, accessor)]
    return "\n".join(lines) + "\n"


def go_method(kind: str, accessor: Accessor) -> Iterable[str]:
    """Yield the lines of a method."""
    name = camel(accessor.name).removesuffix("Id") + ("ID" if accessor.name.endswith("id") else "")
    kinds = {
        TEXT: ("string", f'return e.Metadata["{accessor.key}"]'),
        REVISION: ("(int64, bool)", f'return e.number("{accessor.key}")'),
        NAMES_OF_VIOLATIONS: ("[]string", "return names(e.Violations)"),
    }
    result, body = kinds[accessor.kind]
    yield f"// {name} returns {lower(said(accessor, 'false'))}"
    yield f"func (e *{kind}) {name}() {result} {{ {body} }}"


# ---- Java ----


def java(reasons: Sequence[Reason]) -> str:
    """Return the class of the Java client's exceptions, which has all others as members."""
    lines = [
        f"// {NOTICE}",
        "package agentrouting;",
        "",
        "import io.grpc.Status;",
        "import java.util.List;",
        "import java.util.OptionalLong;",
        "import java.util.function.Function;",
        "",
        "/**",
        *wrapped(f"A call that failed. {USAGE} thrown as the family of its code.", " * "),
        " *",
        " * <pre>",
        *(f" * {line}" for line in tree(reasons, "RoutingException")),
        " * </pre>",
        " */",
        "public class RoutingException extends CallException {",
        "  private static final long serialVersionUID = 1L;",
        "",
        "  RoutingException(Failure failure) {",
        "    super(failure);",
        "  }",
        "",
        "  /** Returns the constructor for a reason; null for a reason that is not known here. */",
        "  static Function<Failure, RoutingException> byReason(String reason) {",
        "    return switch (reason) {",
        *(f'      case "{each.reason}" -> {each.name}::new;' for each in reasons),
        "      default -> null;",
        "    };",
        "  }",
        "",
        "  /** Returns the constructor for a code. */",
        "  static Function<Failure, RoutingException> byCode(Status.Code code) {",
        "    return switch (code) {",
        *(
            f"      case {code} -> {name}::new;"
            for code, name in sorted(family_classes(reasons).items())
        ),
        "      default -> RoutingException::new;",
        "    };",
        "  }",
    ]
    for code, members in by_family(reasons):
        base = "RoutingException"
        if code in FAMILIES:
            base, says = FAMILIES[code]
            lines += ["", f"  /** {code}: {lower(says)} */"]
            lines += java_class("class", base, "RoutingException", ())
        for each in members:
            lines += ["", *doc(each, "  ", between="<p>")]
            lines += java_class("final class", each.name, base, each.accessors)
    return "\n".join([*lines, "}"]) + "\n"


def java_class(kind: str, name: str, base: str, accessors: Sequence[Accessor]) -> Iterable[str]:
    """Yield the lines of a nested class."""
    yield f"  public static {kind} {name} extends {base} {{"
    yield f"    {name}(Failure failure) {{"
    yield "      super(failure);"
    yield "    }"
    kinds = {
        TEXT: ("String", 'return metadata().getOrDefault("{key}", "");'),
        REVISION: ("OptionalLong", 'return number("{key}");'),
        NAMES_OF_VIOLATIONS: (
            "List<String>",
            "return violations().stream().map(Violation::name).toList();",
        ),
    }
    for accessor in accessors:
        result, body = kinds[accessor.kind]
        yield ""
        yield f"    /** Returns {lower(said(accessor, 'empty'))} */"
        yield f"    public {result} {lower_camel(accessor.name)}() {{"
        yield f"      {body.format(key=accessor.key)}"
        yield "    }"
    yield "  }"


GENERATED: Mapping[str, Callable[[Sequence[Reason]], str]] = {
    "clients/python/agent_routing/errors.py": python,
    "clients/typescript/src/errors.ts": typescript,
    "clients/go/reasons.go": go,
    "clients/java/src/main/java/agentrouting/RoutingException.java": java,
}


def main() -> int:
    """Generate, or with --check compare and exit with 1 if anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 if anything differs"
    )
    arguments = parser.parse_args()
    reasons = read_reasons()
    behind = 0
    for name, generate in GENERATED.items():
        path, fresh = ROOT / name, generate(reasons)
        if not arguments.check:
            path.write_text(fresh, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != fresh:
            print(f"{name} is not what error_reason.proto generates", file=sys.stderr)
            behind += 1
    if behind:
        print("run `make protos` and commit the result", file=sys.stderr)
        return 1
    print(f"{len(GENERATED)} error files are {'current' if arguments.check else 'generated'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
