"""Vectors of a registry's texts, kept in a file so that a restart need not compute them again.

Rule: a vector is found by the SHA-256 of model and text; a file that cannot be read or written
costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import structlog

KEY_BYTES: Final = 16
TEXTS_A_STEP: Final = 32
"""Texts that are encoded before other threads get a turn."""

VECTORS_KEPT_MAX: Final = 50_000
"""Of the file: 50 MB. When there are more, those of other registries are left out."""

Encode = Callable[[Sequence[str]], Any]

_log = structlog.get_logger(__name__)


class ExampleVectors:
    """A file of vectors. Safe to share between threads."""

    def __init__(self, path: Path | None, encode: Encode, model: str) -> None:
        """Keep vectors at a path; None: in memory alone. model: names the weights."""
        self._path = path
        self.encode = encode
        self._model = model.encode()
        self._lock = threading.Lock()
        self._known: dict[bytes, Any] | None = None

    def missing(self, texts: Iterable[str]) -> list[str]:
        """Return the different texts that have no vector yet."""
        known = self._read()
        return [text for text in dict.fromkeys(texts) if self._key(text) not in known]

    def of(self, texts: Sequence[str]) -> Any:
        """Return a row a text, computing those that are missing, and keep them."""
        missing = self.missing(texts)
        for at in range(0, len(missing), TEXTS_A_STEP):
            step = missing[at : at + TEXTS_A_STEP]
            found = np.asarray(self.encode(step), dtype=np.float16)
            with self._lock:
                self._read().update(zip(map(self._key, step), found, strict=True))
        if missing:
            self._write(texts)
        known = self._read()
        rows = [known[self._key(text)] for text in texts]
        return np.asarray(rows, dtype=np.float32)

    def _key(self, text: str) -> bytes:
        return hashlib.sha256(self._model + b"\0" + text.encode()).digest()[:KEY_BYTES]

    def _read(self) -> dict[bytes, Any]:
        if self._known is None:
            known: dict[bytes, Any] = {}
            if self._path is not None and self._path.is_file():
                try:
                    with np.load(self._path, allow_pickle=False) as file:
                        keys, vectors = file["keys"], file["vectors"]
                    known = dict(zip(map(bytes, keys), vectors, strict=True))
                except (OSError, ValueError, KeyError) as error:
                    _log.warning("topic_vectors_unreadable", path=str(self._path), error=str(error))
            self._known = known
        return self._known

    def _write(self, texts: Sequence[str]) -> None:
        if self._path is None:
            return
        with self._lock:
            known = self._read()
            if len(known) > VECTORS_KEPT_MAX:
                wanted = {self._key(text) for text in texts}
                known = self._known = {key: row for key, row in known.items() if key in wanted}
            keys = np.frombuffer(b"".join(known), dtype=np.uint8).reshape(-1, KEY_BYTES)
            vectors = np.asarray(list(known.values()), dtype=np.float16)
            part = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with part.open("wb") as file:
                    np.savez(file, keys=keys, vectors=vectors)
                part.replace(self._path)
            except OSError as error:
                with suppress(OSError):
                    part.unlink()
                _log.warning("topic_vectors_not_kept", path=str(self._path), error=str(error))
