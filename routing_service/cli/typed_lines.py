"""Lines that a person types while notices arrive.

Rule: a notice never loses what has been typed so far. It is written above the line, and the line is
drawn again; a line that could not be used is offered for editing at the next prompt.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from routing_service.cli.screen import console

readline: Any = None
"""None on Windows: there a notice is written after what has been typed."""
with suppress(ImportError):
    import readline


class TypedLines:
    """A prompt at a terminal, or lines from a pipe. show() may be called by any thread."""

    def __init__(self, source: TextIO | None = None) -> None:
        """Read from a file, or from standard input."""
        self._source = source or sys.stdin
        self._console: Console = console()
        self.is_terminal = self._source.isatty() and sys.stdout.isatty()
        self._writing = threading.RLock()
        self._prompt = ""
        self._is_asking = False
        self._kept = ""

    @contextmanager
    def above(self) -> Iterator[None]:
        """Give what the block writes its place above the line that is being typed."""
        with self._writing:
            typed = self._typed()
            if typed is not None:
                columns = max(1, shutil.get_terminal_size().columns)
                rows = sum(cell_len(row) // columns for row in f"{self._prompt}{typed}".split("\n"))
                rows += self._prompt.count("\n")
                # To the first row of the prompt, and clear from there on.
                sys.stdout.write("\r" + (f"\x1b[{rows}A" if rows else "") + "\x1b[J")
                sys.stdout.flush()
            yield
            if typed is not None:
                sys.stdout.write(self._prompt + typed)
                sys.stdout.flush()

    def show(self, *lines: Text | str) -> None:
        """Write lines above the one that is being typed."""
        with self.above():
            for line in lines:
                self._console.print(line, soft_wrap=True)

    def keep(self, text: str) -> None:
        """Offer a text for editing at the next prompt."""
        self._kept = text

    def ask(self, prompt: str) -> str | None:
        """Return the next line without its end, or None after the last one."""
        if not self.is_terminal:
            self._kept = ""
            line = self._source.readline()
            return line.rstrip("\r\n") if line else None
        kept, self._kept = self._kept, ""
        if readline is not None:
            readline.set_startup_hook(lambda: readline.insert_text(kept))
        with self._writing:
            self._prompt, self._is_asking = prompt, True
        try:
            return input(prompt)
        except EOFError:
            return None
        finally:
            with self._writing:
                self._is_asking = False
            if readline is not None:
                readline.set_startup_hook()

    def _typed(self) -> str | None:
        """Return what has been typed so far; None while no line is being typed."""
        if not self._is_asking:
            return None
        return readline.get_line_buffer() if readline is not None else ""
