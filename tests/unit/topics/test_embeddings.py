"""The sentence vectors of agent-routing-topics, against those of another implementation."""

import json
import math
from pathlib import Path

import pytest

embeddings = pytest.importorskip("agent_routing_topics.sentence_vectors")
np = pytest.importorskip("numpy")

GOLDEN = json.loads(Path(__file__).with_name("golden_vectors.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def encoder():
    """The weights, checked and read once."""
    return embeddings.load_encoder()


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["text"][:20] or "empty")
def test_pieces_and_vectors_are_the_reference_implementations(encoder, golden):
    """Of three languages, other scripts, ligatures, wide digits and control characters."""
    assert encoder._pieces.numbers(golden["text"]) == golden["pieces"]
    (found,) = encoder.encode([golden["text"]])
    assert found[: len(golden["vector"])] == pytest.approx(golden["vector"], abs=2e-4)
    assert math.isclose(float(found @ found), 1, abs_tol=1e-5)


def test_text_is_encoded_alone_as_with_others(encoder):
    """A batch leaks nothing from one text into its neighbours."""
    texts = [golden["text"] for golden in GOLDEN] * 3
    together = encoder.encode(texts)
    for at in (0, 3, len(texts) - 1):
        assert together[at] == pytest.approx(encoder.encode([texts[at]])[0], abs=1e-5)


def test_cost_of_a_long_text_is_bounded(encoder):
    """64 KB of one word, and of many."""
    found = encoder.encode(["a" * 65_536, "no " * 20_000])
    assert found.shape == (2, embeddings.DIMENSIONS)
    assert np.isfinite(found).all()


def test_damaged_weights_are_refused(tmp_path, monkeypatch):
    """Another file would give verdicts that look like any other."""
    from agent_routing_topics.sentence_vectors import weight_files  # noqa: PLC0415 - where it is installed

    (tmp_path / "SHA256SUMS").write_text("0" * 64 + "  layers.npz\n", "ascii")
    (tmp_path / "layers.npz").write_bytes(b"x")
    monkeypatch.setattr(weight_files, "_FOLDER", tmp_path)
    with pytest.raises(embeddings.WeightsDamaged, match=r"layers\.npz is not the file"):
        embeddings.load_encoder()
    assert len(embeddings.model_sha256()) == 64
