"""Commands that the client understands while the service is away, and its replies to them.

Rule: the names and what counts as typing one are the service's (tests/clients/vectors/text).
"""

from __future__ import annotations

import unicodedata
from typing import Final, NamedTuple

_NAMES: Final = {
    "supervisor": (
        "supervisor supervisora back home menu exit quit leave main salir volver inicio regresar"
        " atras principal voltar sair"
    ),
    "reset": "reset restart reiniciar resetear recomecar resetar",
    "agents": "agents specialists agentes especialistas",
    "agent": "agent agente",
    "status": "status estado estatus situacao",
    "history": "history historial historia historico",
    "help": "help ayuda ajuda",
}
_COMMANDS: Final = {name: command for command, names in _NAMES.items() for name in names.split()}

LEADING_HOME: Final = frozenset({"supervisor", "reset"})

_SLASHES: Final = "/\uff0f"
_NAME_CHARACTERS_MAX: Final = 64
_ACCENTS: Final = frozenset("\u0300\u0301\u0302\u0303\u0308\u0327")
_FULL_WIDTH: Final = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_INVISIBLE: Final = frozenset("\u034f" + "".join(map(chr, range(0xFE00, 0xFE10))))
_PUNCTUATION: Final = frozenset(".,;:!?…¡¿·~*\"'`´)]}»”’。，、！？；：-–—")  # noqa: RUF001 - as typed.
_TIGHT: Final = frozenset(",;:!…¡¿–—，、！；：")  # noqa: RUF001 - as typed.
_SEPARATORS: Final = frozenset(".,;:!?…-–—，、！？；：。")  # noqa: RUF001 - as typed.

_BACK_HOME: Final = {
    "en": "You are back with the main assistant.",
    "es": "Vuelves a estar con el asistente principal.",
    "pt": "Você está de volta com o assistente principal.",
}
_NOT_NOW: Final = {
    "en": "That is not possible right now. Please try again in a few minutes.",
    "es": "Ahora mismo no es posible. Inténtalo de nuevo en unos minutos.",
    "pt": "Isso não é possível agora. Tente de novo em alguns minutos.",
}


class AwayCommand(NamedTuple):
    """A command in a message. name: as in the service's table. rest: the text after it."""

    name: str
    rest: str


def parse(text: str) -> AwayCommand | None:
    """Return the command that a message is, or None for ordinary text."""
    start = _skip(text, 0, "¿¡")
    if text[start : start + 1] not in tuple(_SLASHES):
        return None
    start += 1
    end = start
    while end < len(text) and end - start <= _NAME_CHARACTERS_MAX and _is_of_name(text[end]):
        end += 1
    name = _COMMANDS.get(_folded(text[start:end]))
    rest = _after_name(text[end:])
    if name is None or rest is None:
        return None
    if name != "agent" and not any(character.isalnum() for character in rest):
        rest = ""
    return AwayCommand(name, rest)


def reply(command: AwayCommand, locale: str) -> tuple[str, str]:
    """Return what is shown for a command while the service is away, and its language."""
    texts = _BACK_HOME if command.name in LEADING_HOME else _NOT_NOW
    language = locale.replace("_", "-").partition("-")[0].lower()
    language = language if language in texts else "en"
    return texts[language], language


def _is_invisible(character: str) -> bool:
    return character in _INVISIBLE or unicodedata.category(character) == "Cf"


def _is_of_name(character: str) -> bool:
    if character.isalnum() or character in "_-" or _is_invisible(character):
        return True
    return unicodedata.combining(character) != 0


def _folded(word: str) -> str:
    if any("\u2100" <= character <= "\u214f" for character in word):
        return word  # Signs that Unicode folds to letters, and that are none.
    seen = "".join(character for character in word if not _is_invisible(character))
    parts = unicodedata.normalize("NFD", seen.translate(_FULL_WIDTH))
    return "".join(part for part in parts if part not in _ACCENTS).lower()


def _skip(text: str, place: int, also: str = "") -> int:
    while place < len(text):
        character = text[place]
        if not (character.isspace() or character in also or _is_invisible(character)):
            break
        place += 1
    return place


def _after_name(text: str) -> str | None:
    """Return what follows a name; None if the name goes on, as a path or a longer word does."""
    place = 0
    while place < len(text) and (
        text[place] in _PUNCTUATION
        or _is_invisible(text[place])
        or unicodedata.category(text[place]) in ("So", "Sk")
    ):
        place += 1
    if place < len(text) and not text[place].isspace():
        if not place or text[place - 1] not in _TIGHT or not text[place].isalpha():
            return None
        return text[place:]
    rest = text[_skip(text, place) :]
    end = 0
    while end < len(rest) and rest[end] in _SEPARATORS:
        end += 1
    if end and (end == len(rest) or rest[end].isspace()):
        rest = rest[_skip(rest, end) :]
    return rest
