"""Whether an agent's answer asks the user something, by its text alone.

Rule: only the end of the text counts, since that is what the user reacts to: a question, at most
one short sentence or a list of options after it, or a request for information. Quotations, code and
addresses do not count. A wrong guess costs little: the lock that follows is a soft one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

from routing_service.core.events import Item

ENDING_CHARACTERS_MAX: Final = 600
"""Only so much of the end of a text is looked at: three long sentences."""

TAIL_WORDS_MAX: Final = 14
"""A question counts if at most one sentence of so many words follows it."""

_QUESTION_MARKS: Final = "?？؟"  # noqa: RUF001 - as models write them.

_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_ADDRESS = re.compile(r"(?:https?://|www\.)\S+")
_QUOTED = re.compile(r"«[^«»]*»|“[^“”]*”|\"[^\"\n]*\"")
_MARKUP = re.compile(r"[*_~`#>|]+")
# A sentence ends with its marks and what closes after them, or with its line.
_SENTENCE = re.compile(r".+?(?:[.!?？؟…]+[\"'»”)\]]*(?=\s|\Z)|\n|\Z)", re.DOTALL)  # noqa: RUF001
_LIST_ITEM = re.compile(r"\s*(?:[-•–—+]|\(?[0-9a-z]{1,2}[.)])\s")  # noqa: RUF001 - as written.

# A sentence that begins so answers the question before it: the agent asked itself.
_ANSWERS = re.compile(
    r"(?:because|since|yes|yeah|nope|simple|easy|porque|pues|sí|claro|sim|pois|simples|fácil)\b",
    re.IGNORECASE,
)

# In front of a request.
_BEFORE: Final = (
    r"(?:(?:please|so|then|ok|okay|and|now|just|also|first|por favor|entonces|y|ahora|solo|sólo"
    r"|primero|antes|bueno|pues|porfa|então|e|agora|só|primeiro|bom|para (?:eso|ello|isso|empezar"
    r"|começar|continuar|seguir|terminar)|to (?:start|begin|continue|finish|do that))[,:]?\s+)*"
)
_ENGLISH: Final = (
    r"(?:tell|send|give|show|remind) me"
    r"|let me (?:know|have) (?:what|which|when|where|who|how|whether|your|the)"
    r"|(?:please )?(?:reply|answer|respond) (?:with|yes|no)"
    r"|i(?:.ll| will| would|.d)? (?:just |only |still )?need (?:your|you to|to know)"
    r"|(?:type|enter|choose|pick|select) (?:your|one)"
    r"|please (?:share|confirm|provide|specify|attach|upload|describe|choose|pick|select|enter)"
)
_SPANISH: Final = (
    r"(?:d[ií]|cu[eé]nt|ind[ií]c|ind[ií]qu|env[ií]|m[aá]nd|p[aá]s|conf[ií]rm|expl[ií]c|expl[ií]qu"
    r"|d[aé]|recu[eé]rd|ens[eé][ñn]|escr[ií]b|respond|cont[eé]st|d[ií]g|acl[aá]r)"
    r"(?:a|e|i|an|en)?(?:me|melo|mela|melos)"
    r"|me (?:dices|dice|das|da|env[ií]as|env[ií]a|mandas|manda|pasas|pasa|indicas|indica"
    r"|confirmas|confirma|cuentas|cuenta)"
    r"|(?:solo |sólo )?(?:necesito|necesitar[ií]a|me falta(?:n|r[ií]a)?)"
    r" (?:que me|tu|tus|su|sus|saber)"
)
_PORTUGUESE: Final = (
    r"me (?:diz|diga|fala|fale|conta|conte|manda|mande|passa|passe|envia|envie|informa|informe"
    r"|confirma|confirme|mostra|mostre|explica|explique|lembra|lembre)"
    r"|(?:pode|poderia|consegue) (?:me |nos )?"
    r"(?:mandar|enviar|passar|dizer|informar|confirmar|contar|falar)"
    r"|(?:diga|conte|mande|envie|informe|confirme|manda|conta)(?:-me| pra mim| para mim)"
    r"|(?:só )?(?:preciso|precisaria|falta) (?:d[oea]s? |que )?(?:seu|sua|seus|suas|você|saber)"
)
_REQUEST = re.compile(rf"{_BEFORE}(?:{_ENGLISH}|{_SPANISH}|{_PORTUGUESE})\b", re.IGNORECASE)
# "Let me know if …", "mándame la foto cuando puedas y …": for later, so no answer is waited for.
_FOR_LATER = re.compile(
    r"\b(?:if|si|se|cuando|quando|when (?:you|it)|as soon as|en cuanto|assim que|any ?time|by then"
    r"|before i|a partir|and (?:i|then|it|we|you)|y (?:te|se|lo|la|le|luego|después)|(?:e|que) eu"
    r"|e (?:depois|te))\b",
    re.IGNORECASE,
)


def asks_user(text: str) -> bool:
    """Say whether an answer ends by asking the user something: in English, Spanish, Portuguese.

    In other languages only question marks count.
    """
    ending = unicodedata.normalize("NFC", text[-4 * ENDING_CHARACTERS_MAX :])
    ending = _MARKUP.sub("", _ADDRESS.sub("", _CODE.sub(" ", ending)))
    ending = _QUOTED.sub(" quoted ", ending.strip())[-ENDING_CHARACTERS_MAX:]
    lines = ending.splitlines()
    while lines and (_LIST_ITEM.match(lines[-1]) or not lines[-1].strip()):
        lines.pop()
    sentences = _sentences("\n".join(lines))
    if not sentences:
        return False
    last = sentences[-1]
    if _is_question(last) or _is_request(last):
        return True
    if len(sentences) == 1 or not _is_question(sentences[-2]):
        return False
    return len(last.split()) <= TAIL_WORDS_MAX and not _ANSWERS.match(last.lstrip(" \n¡"))


def last_text(items: Sequence[Item]) -> str:
    """Return the text of the last item that has one; "" for none."""
    return next((item.text for item in reversed(items) if item.text), "")


def _sentences(text: str) -> list[str]:
    found = (match[0] for match in _SENTENCE.finditer(text))
    return [sentence for sentence in found if any(map(str.isalnum, sentence))]


def _is_question(sentence: str) -> bool:
    marks = sentence.rstrip(" \t\n\"'»”)]!.…")
    if marks.endswith(tuple(_QUESTION_MARKS)):
        return True
    # Opened and not closed, as in a hurry.
    return "¿" in sentence and not any(mark in sentence for mark in _QUESTION_MARKS)


def _is_request(sentence: str) -> bool:
    said = sentence.strip().lstrip("¡!-–—• ").removeprefix("…")  # noqa: RUF001 - as written.
    clauses = [said, *(part.strip() for part in re.split(r"[:;,]\s", said)[1:])]
    for clause in clauses:
        match = _REQUEST.match(clause)
        if match and not _FOR_LATER.search(said):
            return True
    return False
