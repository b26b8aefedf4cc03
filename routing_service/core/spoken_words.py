"""Small words of the languages of the replies that say nothing about which agent is meant.

Folded (see typed_text.fold_word). A name may contain them; then the whole name still counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# English, Spanish, Portuguese: articles, prepositions, conjunctions, and ways to ask.
_FILLERS: Final = (
    "a an the of and or for to with one agent me please talk speak i want"
    " el la los las lo un una de del al y e o u en con para por quiero hablar agente"
    " os as um uma do da dos das no na com ao pra pro falar quero"
    " que"
)
FILLERS: Final = frozenset(_FILLERS.split())
"""Words that are passed over in front of a name, and that no agent is found by."""

_NUMBER_SIGNS: Final = "n no nro num numero number option opcion opcao # º nº n.º nº. n."
NUMBER_SIGNS: Final = frozenset(_NUMBER_SIGNS.split())
"""Words and signs that come before a number in a list."""

ORDINALS: Final[Mapping[str, int]] = MappingProxyType(
    {
        word: number
        for number, words in enumerate(
            (
                "one first uno una primero primera primer um uma primeiro primeira",
                "two second dos segundo segunda dois duas",
                "three third tres tercero tercera tercer terceiro terceira",
                "four fourth cuatro cuarto cuarta quatro quarto quarta",
                "five fifth cinco quinto quinta",
                "six sixth seis sexto sexta",
                "seven seventh siete septimo septima sete setimo setima",
                "eight eighth ocho octavo octava oito oitavo oitava",
                "nine ninth nueve noveno novena nove nono nona",
                "ten tenth diez decimo decima dez",
            ),
            start=1,
        )
        for word in words.split()
    }
)
"""Numbers as words, up to ten."""
