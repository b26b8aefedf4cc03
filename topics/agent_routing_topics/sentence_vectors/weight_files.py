"""Reads the weights that come with the package, and checks them against SHA256SUMS."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import numpy as np

from agent_routing_topics.sentence_vectors.encoder import Encoder
from agent_routing_topics.sentence_vectors.pieces import Pieces

_FOLDER: Final = Path(__file__).parent / "weights"
_SUMS: Final = "SHA256SUMS"


class WeightsDamaged(Exception):
    """A file of weights that is not the one that was released; the message names it."""


def model_sha256() -> str:
    """Return what names the weights: the SHA-256 of the list of their sums."""
    return hashlib.sha256((_FOLDER / _SUMS).read_bytes()).hexdigest()


def load_encoder() -> Encoder:
    """Read and check the weights: half a second, once. Raises WeightsDamaged, OSError."""
    for line in (_FOLDER / _SUMS).read_text("ascii").splitlines():
        wanted, name = line.split()
        with (_FOLDER / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wanted:
            raise WeightsDamaged(
                f"{_FOLDER / name} is not the file that was released; "
                "install agent-routing-topics again"
            )
    table = np.concatenate([np.load(_FOLDER / f"vectors-{half}.npz")["table"] for half in (1, 2)])
    with np.load(_FOLDER / "layers.npz", allow_pickle=False) as file:
        layers = {name: file[name] for name in file.files}
    names = (_FOLDER / "pieces.txt").read_text("utf-8").split("\n")
    return Encoder(Pieces(names, layers["scores"].tolist()), table, layers)
