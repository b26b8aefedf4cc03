"""From pieces of words to one vector a text.

Rule: a text's vector does not depend on the texts it is encoded with, but for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from agent_routing_topics.sentence_vectors.pieces import Pieces

DIMENSIONS: Final = 512

PIECES_MAX: Final = 256
"""Of a text, the first pieces: what a message is about stands in its beginning."""

_BATCH_PIECES: Final = 384
"""Pieces that are computed at once: more gain nothing, and would not fit into a cache."""

_TABLE_PARTS: Final = 17
"""Piece n was put into 8 bits with the scale of part n modulo this."""

_BRANCHES: Final = (("2", 0, 2), ("3", 1, 3), ("5", 2, 5))
"""Of each convolution: its name, how many pieces it looks back, and how many it sees."""

_JOINED: Final = {
    "projection": "proj",
    "projection_bias": "proj_b",
    "projection_gain": "ln_g",
    "projection_shift": "ln_b",
}

_GAP: Final = 2
"""Rows of nothing between texts: as far as any convolution looks."""

Floats = NDArray[np.float32]


class Encoder:
    """The model. Immutable, so that threads may share it."""

    def __init__(
        self, pieces: Pieces, table: NDArray[np.uint8], layers: Mapping[str, NDArray[Any]]
    ) -> None:
        """Take over the vocabulary, the vectors of pieces in 8 bits, and the layers by name."""
        self._pieces = pieces
        self._table = table
        self._layers = dict(layers)
        # One product for the three convolutions: their inputs are leveled together.
        for joined, part in _JOINED.items():
            parts = [layers[f"{part}{name}"] for name, _, _ in _BRANCHES]
            self._layers[joined] = np.concatenate(parts, axis=-1)
        self._epsilon = float(layers["eps"])

    def encode(self, texts: Sequence[str]) -> Floats:
        """Return a row of DIMENSIONS numbers a text, each of length 1."""
        found = np.empty((len(texts), DIMENSIONS), dtype=np.float32)
        batch: list[list[int]] = []
        first = held = 0
        for at, text in enumerate(texts):
            numbers = self._pieces.numbers(text)[:PIECES_MAX]
            if batch and held + len(numbers) > _BATCH_PIECES:
                found[first:at] = self._encoded(batch)
                batch, first, held = [], at, 0
            batch.append(numbers)
            held += len(numbers)
        if batch:
            found[first:] = self._encoded(batch)
        return found

    def _encoded(self, batch: Sequence[Sequence[int]]) -> Floats:
        layers = self._layers
        sizes = np.array([len(numbers) for numbers in batch])
        starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
        # Rows with gaps, so that what a convolution sees outside its text is nothing.
        rows = np.arange(sizes.sum()) + _GAP * (1 + np.repeat(np.arange(len(batch)), sizes))
        flat = np.concatenate([np.asarray(numbers) for numbers in batch])
        part = flat % _TABLE_PARTS
        pieces = self._table[flat].astype(np.float32)
        pieces *= layers["scale"][part, None]
        pieces += layers["lo"][part, None]
        features = [pieces]
        spaced = int(sizes.sum()) + _GAP * (len(batch) + 1)
        projected = self._leveled(
            pieces @ layers["projection"] + layers["projection_bias"],
            layers["projection_gain"],
            layers["projection_shift"],
        )
        for (name, back, width), branch in zip(
            _BRANCHES, np.split(projected, len(_BRANCHES), axis=1), strict=True
        ):
            inner = branch
            for step in ("1", "2"):
                padded = np.zeros((spaced, inner.shape[1]), dtype=np.float32)
                padded[rows] = inner
                seen = np.concatenate(
                    [padded[rows - back + offset] for offset in range(width)], axis=1
                )
                inner = inner + np.maximum(
                    seen @ layers[f"w{step}_{name}"] + layers[f"b{step}_{name}"], 0
                )
            features.append(inner)
        leveled = self._leveled(np.concatenate(features, axis=1), layers["ln_g"], layers["ln_b"])
        sums = np.add.reduceat(leveled, starts, axis=0) @ layers["cnn_W"]
        counts = sizes.astype(np.float32)[:, None]
        pooled = (sums + counts * layers["cnn_b"]) / np.sqrt(counts)
        first = np.maximum(pooled @ layers["d0"], 0)
        second = np.maximum(pooled @ layers["p1"] + first @ layers["d1"], 0)
        third = np.maximum(second @ layers["d2"], 0)
        out = np.tanh(second @ layers["p3"] + third @ layers["d3"])
        lengths = np.sqrt(np.maximum((out * out).sum(axis=1, keepdims=True), self._epsilon))
        vectors: Floats = (out / lengths).astype(np.float32)
        return vectors

    def _leveled(self, values: Floats, gain: Floats, bias: Floats) -> Floats:
        """Return rows with mean 0 and variance 1, times gain, plus bias."""
        centred = values - values.mean(axis=1, keepdims=True)
        variance = (centred * centred).mean(axis=1, keepdims=True)
        leveled: Floats = centred / np.sqrt(variance + self._epsilon) * gain + bias
        return leveled
