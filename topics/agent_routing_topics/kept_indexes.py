"""What was computed of large registries, kept in files so that a restart need not read them again.

Rule: a file is found by the SHA-256 of the agents and of all that computes; one that is damaged or
cannot be written costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog

from agent_routing_topics.model.agent_index import (
    AgentIndex,
    AgentText,
    ByWord,
    GiveWay,
    KeptAgents,
)
from agent_routing_topics.model.closeness import ByToken, ClosenessIndex, KeptCloseness
from agent_routing_topics.model.trained_model import Indexes
from agent_routing_topics.model.word_knowledge import WordKnowledge

EXAMPLES_LEAST: Final = 500
"""A registry with fewer examples is read in less than half a second, and is not kept."""

FILES_MAX: Final = 4
"""Registries that are kept, 10 MB each with 8,400 examples. The oldest file is removed."""

_NAME: Final = "topic-words-"
_ENDING: Final = ".bin"
_DIGEST_BYTES: Final = 32
_KEY_CHARACTERS: Final = 32

_log = structlog.get_logger(__name__)
_Held = TypeVar("_Held", bound=tuple[Any, ...])

_MADE_BY: Final = "agent_routing_topics.model"


class KeptIndexes:
    """A folder of files, one a registry. Safe to share between threads and processes."""

    def __init__(self, folder: Path) -> None:
        """Keep files in a folder, which is made when it is needed."""
        self._folder = folder

    def read(
        self,
        version: str,
        agents: Sequence[AgentText],
        knowledge: WordKnowledge,
        give_way: GiveWay,
    ) -> Indexes | None:
        """Return what was kept of agents; None where nothing is kept, or it is damaged.

        version: names the parameters of the model. give_way: called after each agent.
        """
        if not is_large(agents):
            return None
        path = self._path(version, agents)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != digest:
            _log.warning("topic_words_damaged", path=str(path))
            return None
        give_way()
        first, second, *parts = msgspec.msgpack.decode(body, type=list[bytes])
        whole = _whole(first, give_way)
        closeness = msgspec.msgpack.decode(second, type=KeptCloseness)
        decoder = msgspec.msgpack.Decoder(tuple[ByWord, ByToken])
        words: list[ByWord] = []
        tokens: list[ByToken] = []
        known: dict[Any, Any] = {}
        give_way()
        whole = msgspec.structs.replace(
            whole,
            examples=_shared(whole.examples, known),
            pairs=_shared(whole.pairs, known),
            mentioned=_shared(whole.mentioned, known),
        )
        give_way()
        for part in parts:
            by_word, by_token = decoder.decode(part)
            words.append(_shared(by_word, known))
            tokens.append(_shared(by_token, known))
            give_way()
        return (
            AgentIndex.of_kept(agents, knowledge, whole, words),
            ClosenessIndex.of_kept(knowledge, closeness, tokens),
        )

    def keep(self, version: str, agents: Sequence[AgentText], made: Indexes) -> None:
        """Write what was computed of agents, if they are many, and remove the oldest files."""
        if not is_large(agents):
            return
        whole, words = made[0].kept
        closeness, tokens = made[1].kept
        encode = msgspec.msgpack.encode
        parts = [encode(part) for part in zip(words, tokens, strict=True)]
        fields = [encode(value) for value in msgspec.structs.astuple(whole)]
        body = encode([encode(fields), encode(closeness), *parts])
        path = self._path(version, agents)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Examples that were learned are what users wrote.
            part.touch(mode=0o600)
            part.write_bytes(hashlib.sha256(body).digest() + body)
            part.replace(path)
            self._remove_oldest()
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            _log.warning("topic_words_not_kept", path=str(path), error=str(error))

    def _remove_oldest(self) -> None:
        kept = sorted(
            self._folder.glob(f"{_NAME}*{_ENDING}"), key=lambda path: path.stat().st_mtime_ns
        )
        for path in kept[:-FILES_MAX]:
            path.unlink()

    def _path(self, version: str, agents: Sequence[AgentText]) -> Path:
        digest = hashlib.sha256(self._code)
        digest.update(version.encode())
        for agent in agents:
            digest.update(
                msgspec.msgpack.encode(
                    (agent.agent_id, agent.names, agent.descriptions, agent.examples)
                )
            )
        return self._folder / f"{_NAME}{digest.hexdigest()[:_KEY_CHARACTERS]}{_ENDING}"

    @cached_property
    def _code(self) -> bytes:
        """Names the code: what it computes otherwise is computed again."""
        digest = hashlib.sha256(unicodedata.unidata_version.encode())
        for file in sorted(files(_MADE_BY).iterdir(), key=lambda file: file.name):
            if file.name.endswith((".py", ".txt")):
                digest.update(file.read_bytes())
        return digest.digest()


def is_large(agents: Sequence[AgentText]) -> bool:
    """Tell whether reading agents takes so long that it is kept."""
    return sum(len(agent.examples) for agent in agents) >= EXAMPLES_LEAST


def _whole(content: bytes, give_way: GiveWay) -> KeptAgents:
    """Return what was kept of all agents together. give_way: called after each field."""
    values = []
    fields = msgspec.structs.fields(KeptAgents)
    for field, value in zip(fields, msgspec.msgpack.decode(content, type=list[bytes]), strict=True):
        values.append(msgspec.msgpack.decode(value, type=field.type))
        give_way()
    return KeptAgents(*values)


def _shared(
    held: dict[str, tuple[_Held, ...]], known: dict[Any, Any]
) -> dict[str, tuple[_Held, ...]]:
    """Return the same with one object for what is equal: a tenth of the memory."""
    one = known.setdefault
    return {
        one(token, token): tuple([one(pair, pair) for pair in pairs])
        for token, pairs in held.items()
    }
