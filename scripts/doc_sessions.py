#!/usr/bin/env python3
"""Run the commands in the documentation, and compare or rewrite their output.

    scripts/doc_sessions.py --check README.md docs/*.md    differences end with exit code 1
    scripts/doc_sessions.py --write README.md              write the present output into the page
    scripts/doc_sessions.py --list README.md docs/*.md     each block, and what is done with it

A page's blocks run in order, in one shell and one Python, in a folder that looks like this one
(its own entries are links, so what a page writes stays out of the tree):

    console          each command after a $ runs; what it prints is compared
    sh               runs as a script; must end with 0
    python           runs, with what the blocks before it defined; a text block right behind it is
                     compared with what it printed
    a title="NAME"   of any kind: is written to that file
    yaml toml json   without a title: must be well formed; a registry file must pass the check
    text             is shown only

A comment, before a block or alone, changes that:

    <!-- test: skip WHY -->          the block is not run; the reason is part of --list
    <!-- test: server EXAMPLE -->    the page speaks of that example; tax, where none is named
    <!-- test: alone -->             the block's script gets no server, as for a newcomer
    <!-- test: elsewhere FILE -->    the whole page is run by that test
    <!-- test: background -->        the block's last command keeps running, once it serves
    <!-- test: stop -->              Ctrl-C to the running command

127.0.0.1:50051 is a server of the example on a new store, or what the page itself starts there. Ids
and times that differ from run to run are compared by their form.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import re
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from markdown_it import MarkdownIt
from ruamel.yaml import YAML

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parent.parent
DOCUMENTED: Final = "127.0.0.1:50051"
COMMAND_S_MAX: Final = 120
SERVING_S_MAX: Final = 60
COLUMNS: Final = "96"
SHOWN_ONLY: Final = {"text"}
RUN: Final = {"console", "sh", "python"}
CHECKED: Final = {"yaml", "toml", "json"}
# What a page must not find or change: its own data, other builds.
NOT_LINKED: Final = {".git", "var", "build", "dist"}

_DIRECTIVE: Final = re.compile(r"<!--\s*test:\s*(\S+)\s*(.*?)\s*-->", re.DOTALL)
_TITLE: Final = re.compile(r'\btitle="([^"]+)"')
_VARYING: Final = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*( UTC|Z)?"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d[.\d]*\b"), "TIME"),
    (re.compile(r"\d+(\.\d+)? ?(ms|s|min|KB|MB|KiB|MiB)\b"), "SPAN"),
)
# The blocks of a page share one namespace; await works as in the interactive interpreter.
_INTERPRETER: Final = """
import ast, asyncio, contextlib, io, json, sys, traceback
names = {"__name__": "__main__"}
runner = asyncio.Runner()
for line in sys.stdin:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code = compile(json.loads(line), "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waiting = eval(code, names)
            if waiting is not None:
                async def finish(waiting=waiting):
                    await waiting
                runner.run(finish())
            failed = False
        except BaseException:
            traceback.print_exc()
            failed = True
    print(json.dumps([failed, printed.getvalue()]), flush=True)
"""


class PageError(Exception):
    """A block that cannot be run as it stands, with what to do."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its lines are start..end of the page, fences excluded."""

    language: str
    title: str
    text: str
    start: int
    end: int
    skipped: str = ""
    in_background: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Stop:
    """Ctrl-C to what the page left running."""


@dataclass
class Page:
    """What a page asks for, in its order."""

    path: Path
    lines: list[str]
    example: str = "tax"
    elsewhere: str = ""
    steps: list[Block | Stop] = field(default_factory=list)

    @property
    def blocks(self) -> list[Block]:
        """The page's blocks, without its other steps."""
        return [step for step in self.steps if isinstance(step, Block)]

    @property
    def starts_its_own(self) -> bool:
        """Whether the page itself starts what answers at the documented address."""
        return any(block.in_background for block in self.blocks)


def main() -> int:
    """Run the pages, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--list", action="store_true")
    parser.add_argument("pages", nargs="+", type=Path)
    arguments = parser.parse_args()
    failed = 0
    for path in arguments.pages:
        try:
            page = read_page(path)
            if arguments.list:
                show(page)
                continue
            before = "".join(page.lines)
            after = play(page)
        except PageError as error:
            print(f"{path}: {error}")
            failed += 1
            continue
        if arguments.write:
            path.write_text(after, encoding="utf-8")
            continue
        differences = list(
            difflib.unified_diff(
                steady(before).splitlines(),
                steady(after).splitlines(),
                str(path),
                "what is seen",
                lineterm="",
            )
        )
        sys.stdout.writelines(f"{line}\n" for line in differences)
        failed += bool(differences)
    return 1 if failed else 0


def read_page(path: Path) -> Page:
    """Read a page's blocks and what its comments say of them.

    Raises:
        PageError: A block of a kind that is neither run nor shown only, and not skipped either.
    """
    text = path.read_text(encoding="utf-8")
    page = Page(path, text.splitlines(keepends=True))
    skipped = ""
    in_background = alone = False
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "html_block":
            for word, rest in _DIRECTIVE.findall(token.content):
                if word == "skip" and rest:
                    skipped = rest
                elif word == "server":
                    page.example = rest
                elif word == "background":
                    in_background = True
                elif word == "alone":
                    alone = True
                elif word == "elsewhere":
                    page.elsewhere = rest
                elif word == "stop":
                    page.steps.append(Stop())
                else:
                    message = f"unknown comment: test: {word} {rest}".rstrip()
                    raise PageError(message)
        elif token.type == "code_block" and token.map:
            message = f"line {token.map[0] + 1}: an indented block; fence it, with its language"
            raise PageError(message)
        elif token.type == "fence" and token.map:
            start, end = token.map
            language, _, attributes = token.info.partition(" ")
            title = _TITLE.search(attributes)
            block = Block(
                language,
                title.group(1) if title else "",
                token.content,
                start + 1,
                end - 1,
                skipped or (f"run by {page.elsewhere}" if page.elsewhere else ""),
                in_background,
                alone,
            )
            skipped, in_background, alone = "", False, False
            require_known(block)
            page.steps.append(block)
    return page


def require_known(block: Block) -> None:
    """Refuse a block that would be neither run nor compared."""
    if block.skipped or block.title or block.language in RUN | SHOWN_ONLY | CHECKED:
        return
    message = (
        f"line {block.start}: a block of the kind {block.language!r} is not run: name a kind that "
        "is, or say <!-- test: skip WHY --> before it"
    )
    raise PageError(message)


def show(page: Page) -> None:
    """Print each block, and what is done with it."""
    for block in page.blocks:
        done = f"skipped: {block.skipped}" if block.skipped else _done_with(block)
        print(f"{page.path}:{block.start}: {block.language or 'plain'}: {done}")


def _done_with(block: Block) -> str:
    if block.title:
        return f"written to {block.title}"
    if block.language in RUN:
        return "run in the background" if block.in_background else "run"
    return "shown only" if block.language in SHOWN_ONLY else "checked"


def play(page: Page) -> str:
    """Return the page with what its commands and programs print now.

    Raises:
        PageError: A script that failed, a file that is not well formed.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="page-")))
        for entry in ROOT.iterdir():
            if entry.name not in NOT_LINKED:
                (folder / entry.name).symlink_to(entry)
        (folder / "var").mkdir()
        address = free_address()
        shell = stack.enter_context(Shell.started(folder, address))
        if not page.starts_its_own and any(block.language in RUN for block in page.blocks):
            shell.serve_example(page.example)
        python = stack.enter_context(Interpreter.started(folder, address))
        return Player(page, shell, python, address).played()


class Player:
    """One run of a page."""

    def __init__(self, page: Page, shell: Shell, python: Interpreter, address: str) -> None:
        self._page = page
        self._shell = shell
        self._python = python
        self._address = address
        self._lines = list(page.lines)
        self._printed: str | None = None

    def played(self) -> str:
        """Run every step; return the page as it should read."""
        # A replacement may have more lines than what it replaces: from the last to the first.
        seen: list[tuple[Block, str]] = []
        for step in self._page.steps:
            if isinstance(step, Stop):
                self._shell.stop_background()
                continue
            shown = self._one(step)
            if shown is not None:
                seen.append((step, shown))
        for block, shown in reversed(seen):
            self._lines[block.start : block.end] = shown.splitlines(keepends=True)
        return "".join(self._lines)

    def _one(self, block: Block) -> str | None:
        """Return what the block should hold, or None where it stays as it is."""
        printed, self._printed = self._printed, None
        if block.skipped:
            return None
        text = block.text.replace(DOCUMENTED, self._address)
        if block.title:
            path = self._shell.folder() / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if block.language == "console":
            return self._console(block, text)
        if block.language == "sh":
            self._script(block, text)
        elif block.language == "python" and not block.title:
            failed, self._printed = self._python.run(text)
            if failed:
                message = f"line {block.start}: {self._printed}"
                raise PageError(message)
        elif block.language == "text":
            return printed.replace(self._address, DOCUMENTED) if printed else None
        else:
            self._check_form(block, text)
        return None

    def _console(self, block: Block, text: str) -> str:
        if block.in_background:
            # A server's log lines are not compared: the page shows a choice of them.
            self._shell.run_in_background(commands(text)[-1])
            return block.text
        shown = ""
        for command in commands(text):
            _, printed = self._shell.run(command)
            lines = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
            shown += f"$ {command}\n{lines}"
        return shown.replace(self._address, DOCUMENTED)

    def _script(self, block: Block, text: str) -> None:
        if block.in_background:
            self._shell.run_in_background(text.rstrip("\n"))
            return
        # In a shell of its own, so that a failure does not end the page's shell.
        script = self._shell.folder() / "var" / "script-of-the-page.sh"
        script.parent.mkdir(exist_ok=True)
        script.write_text(text, encoding="utf-8")
        without = "env --unset AGENT_ROUTING_TARGET " if block.alone else ""
        status, printed = self._shell.run(f"{without}bash -e -o pipefail '{script}'")
        if status:
            message = f"line {block.start}: the script ended with {status}:\n{printed}"
            raise PageError(message)

    def _check_form(self, block: Block, text: str) -> None:
        try:
            if block.language == "json":
                json.loads(text)
            elif block.language == "toml":
                tomllib.loads(text)
            elif block.language == "yaml":
                YAML(typ="safe").load(text)
        except ValueError as error:
            message = f"line {block.start}: not well formed: {error}"
            raise PageError(message) from error
        if block.language == "yaml" and text.startswith("api_version: agent_routing/"):
            path = self._shell.folder() / (block.title or "var/registry-of-the-page.yaml")
            path.write_text(text, encoding="utf-8")
            status, printed = self._shell.run(f"agent-routing check '{path}'")
            if status:
                message = f"line {block.start}: the registry file is refused:\n{printed}"
                raise PageError(message)


class Shell:
    """One bash for the whole page, so that cd and export last."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, address: str) -> None:
        self._process = process
        self._folder = folder
        self._address = address
        self._background: list[subprocess.Popen[bytes]] = []

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path, address: str) -> Iterator[Shell]:
        """Run bash in the folder, and end it with all that it started."""
        process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env=environment(address),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        shell = cls(process, folder, address)
        try:
            yield shell
        finally:
            shell.stop_background()
            process.kill()
            process.communicate()

    def run(self, command: str) -> tuple[int, str]:
        """Run a command; return its exit status and what a terminal would show."""
        mark = f"end-{secrets.token_hex(8)}"
        assert self._process.stdin is not None
        self._process.stdin.write(f"{{ {command}\n}} </dev/null\necho {mark} $?\n".encode())
        self._process.stdin.flush()
        shown = self._read_until(mark, command)
        body, _, status = shown.rpartition(f"{mark} ")
        return int(status), body

    def folder(self) -> Path:
        """Return the folder that the shell is in."""
        return Path(self.run("pwd -P")[1].strip())

    def serve_example(self, example: str) -> None:
        """Serve an example at the page's address, on a new store."""
        store = self._folder / "var" / f"{example}.db"
        agents = ROOT / "routing_service" / "examples" / f"{example}.yaml"
        self.run_in_background(
            f"agent-routing serve --listen {self._address} --agents {agents} "
            f"--store sqlite:///{store}"
        )

    def run_in_background(self, command: str) -> None:
        """Start a server, wait until it answers, and leave it running.

        Raises:
            PageError: It ended, or does not answer.
        """
        log = self._folder / "var" / f"background-{len(self._background)}.log"
        folder = self.folder()
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}" if "\n" not in command else command],
                cwd=folder,
                env=environment(self._address),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._background.append(process)
        until = time.monotonic() + SERVING_S_MAX
        while b"serving on " not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > until:
                message = f"{command!r} does not serve:\n{log.read_text(errors='replace')}"
                raise PageError(message)
            time.sleep(0.05)

    def stop_background(self) -> None:
        """Stop what was started last as Ctrl-C does, and wait for its end."""
        while self._background:
            process = self._background.pop()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(SERVING_S_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _read_until(self, mark: str, command: str) -> str:
        stdout = self._process.stdout
        assert stdout is not None
        seen = b""
        until = time.monotonic() + COMMAND_S_MAX
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not re.search(rb"%b \d+\n$" % mark.encode(), seen):
                if not selector.select(max(0.0, until - time.monotonic())):
                    message = f"{command!r} did not end within {COMMAND_S_MAX} s:\n{seen.decode()}"
                    raise PageError(message)
                more = os.read(stdout.fileno(), 65_536)
                if not more:
                    message = f"the shell ended in {command!r}:\n{seen.decode()}"
                    raise PageError(message)
                seen += more
        return seen.decode()


class Interpreter:
    """One Python for the whole page, started with its first Python block."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self._address = address
        self._process: subprocess.Popen[str] | None = None

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path, address: str) -> Iterator[Interpreter]:
        """Give a Python that begins when it is asked, and ends with the page."""
        python = cls(folder, address)
        try:
            yield python
        finally:
            if python._process is not None:
                python._process.kill()
                python._process.communicate()

    def run(self, text: str) -> tuple[bool, str]:
        """Run a block; return whether it failed, and what it printed."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _INTERPRETER],
                cwd=self._folder,
                env=environment(self._address),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(text)}\n")
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(COMMAND_S_MAX):
                return True, f"a Python block did not end within {COMMAND_S_MAX} s"
        failed, printed = json.loads(self._process.stdout.readline())
        return failed, printed


def commands(body: str) -> list[str]:
    """Return a console block's commands. $ begins one; an open quote or backslash extends it."""
    found: list[str] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append(line[2:])
        elif found and is_unfinished(found[-1]):
            found[-1] += f"\n{line}"
    return found


def is_unfinished(command: str) -> bool:
    """Tell whether a shell would ask for more: an open quote, a backslash at the end."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def environment(address: str) -> dict[str, str]:
    """Return what a newcomer's terminal has, with the commands of this installation.

    The tests have a folder with a quicker one (tests/forked_commands.py).
    """
    own = [os.environ["DOC_SESSIONS_BIN"]] if "DOC_SESSIONS_BIN" in os.environ else []
    return {
        **os.environ,
        "PATH": ":".join([*own, str(Path(sys.executable).parent), os.environ["PATH"]]),
        "AGENT_ROUTING_TARGET": address,
        "COLUMNS": COLUMNS,
        "NO_COLOR": "1",
    }


def free_address() -> str:
    """Return an unused address of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def steady(text: str) -> str:
    """Return a text with ids, times and the like replaced by their form."""
    for pattern, form in _VARYING:
        text = pattern.sub(form, text)
    return text


if __name__ == "__main__":
    sys.exit(main())
