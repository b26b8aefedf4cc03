"""The screens of the chat in the documentation: one for each language, wide and on a phone.

``test_pages.py`` runs their commands and compares what they show.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from routing_service.texts import shipped_texts

PAGE = Path(__file__).parent.parent.parent / "docs" / "chat-screens.md"
PHONE_COLUMNS = 40
WIDE_COLUMNS = 80


def screens() -> list[tuple[str, list[str]]]:
    """Return each command of the page that chats, with the lines that it shows."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = []
    for block in blocks:
        *_, command, shown = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
        found.append((command, shown.splitlines()))
    return found


@pytest.mark.parametrize("locale", shipped_texts().locales)
def test_each_language_has_its_screen_wide_and_on_a_phone(locale):
    """A language that is added needs both."""
    commands = [command for command, _ in screens() if f"--locale {locale} " in command]
    assert any("--width 40" in command for command in commands)
    assert any("--width" not in command for command in commands)


def test_no_line_is_wider_than_its_screen():
    """Longer lines are broken anywhere by a phone."""
    for command, lines in screens():
        columns = PHONE_COLUMNS if "--width 40" in command else WIDE_COLUMNS
        assert max(map(len, lines)) <= columns, command
        assert len(lines) > 10
