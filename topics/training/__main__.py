"""Train the topic model, or check that the file that ships is what the data give.

    scripts/train_topics.py            write parameters.json
    scripts/train_topics.py --check    compare with the file that ships
    scripts/train_topics.py --judge    judge by folds and on the registries set aside; write nothing

Needs the corpora in the folder that ROUTING_DIALOGUES names.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

import agent_routing_topics.model as package
from agent_routing_topics.model.option_rows import (
    MEANING_FEATURES,
    SHARED,
    WORD_FEATURES,
    OptionReader,
)
from agent_routing_topics.model.parameters import (
    BINS,
    FILE,
    FORMAT,
    Forest,
    Parameters,
    Prior,
    version_of,
)
from agent_routing_topics.model.registry_meaning import RegistryMeaning, columns_of, texts_of
from agent_routing_topics.model.registry_words import RegistryWords
from agent_routing_topics.sentence_vectors import load_encoder, model_sha256
from topics.training.data import (
    DIALOGUES_VARIABLE,
    Conversations,
    dialogues_folder,
    load_corpora,
    load_field,
    shortened,
)
from topics.training.figures import Heats, Judged, figures_of, temperatures_of
from topics.training.learned import Learned, VectorOf, learn
from topics.training.trees import Group, fit, scores, trees_of

FOLDS: Final = 5
TEXTS_A_STEP: Final = 64
JUDGED: Final = ("given", "rich")
KEPT: Final = Path("build/topics")
"""Where vectors are kept, from the root: computing them takes most of the time."""
FEATURES: Final = {"words": WORD_FEATURES, "meaning": MEANING_FEATURES}


def vectors_of(registries: Sequence[Conversations]) -> VectorOf:
    """Encode every text once, in an order that does not change."""
    texts: set[str] = set()
    for registry in registries:
        texts.update(text for agent in (*registry.agents, *registry.rich) for text in agent.texts)
        for message in registry.messages:
            question = message.question
            texts.add(question.text)
            texts.update(text for turn in question.recent for text in texts_of(turn))
    ordered = sorted(texts)
    named = hashlib.sha256("\0".join([model_sha256(), *ordered]).encode()).hexdigest()
    kept = KEPT / f"vectors-{named[:16]}.npy"
    if kept.is_file():
        rows = np.load(kept)
    else:
        encoder = load_encoder()
        rows = np.empty((len(ordered), 512), dtype=np.float32)
        for at in range(0, len(ordered), TEXTS_A_STEP):
            rows[at : at + TEXTS_A_STEP] = encoder.encode(ordered[at : at + TEXTS_A_STEP])
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.save(kept, rows)
    places = {text: place for place, text in enumerate(ordered)}
    return lambda text: rows[places[text]]


def groups_of(registry: Conversations, learned: Learned, vector_of: VectorOf) -> list[Group]:
    """Describe each message's options, with each choice of examples."""
    found = []
    stretch, locked = SHARED.index("stretch"), SHARED.index("is_locked")
    for kind, agents in registry.variants():
        words = RegistryWords(agents, learned.shares, lambda: None)
        reader = OptionReader(agents, words, learned.goes_on)
        vectors = np.array([vector_of(text) for agent in agents for text in agent.texts])
        meaning = RegistryMeaning(agents, vectors)

        def encode(texts: Sequence[str]) -> Any:
            return [vector_of(text) for text in texts]

        for message in registry.messages:
            question = message.question
            reading = reader.read(question)
            more = columns_of(reader, meaning, reading, encode, learned.goes_on_meaning)
            owner = message.owner or question.active_agent_id
            active = question.active_agent_id
            found.append(
                Group(
                    words=np.asarray(reading.rows(), dtype=np.float32),
                    meaning=np.asarray(reading.rows(*more), dtype=np.float32),
                    right=reading.ids.index(owner) if owner in reading.ids else -1,
                    active=reading.ids.index(active) if active in reading.ids and active else -1,
                    registry=registry.name,
                    kind=kind,
                    language=registry.language,
                    stretch=int(reading.shared[stretch]),
                    is_locked=bool(reading.shared[locked]),
                    heat=reading.kind,
                    weight=registry.weight,
                    is_short=registry.is_short,
                )
            )
    return found


def folds_of(names: Sequence[str]) -> list[list[str]]:
    """Divide registries into folds, with each language in each."""
    shuffled = list(names)
    random.Random(0).shuffle(shuffled)
    return [sorted(shuffled[at::FOLDS]) for at in range(FOLDS)]


def described(
    field: Sequence[Conversations], corpora: Sequence[Conversations], vector_of: VectorOf
) -> list[list[Group]]:
    """Return the groups of each fold, then those of the corpora."""
    by_name = {registry.name: registry for registry in field}
    found = []
    for held in folds_of(sorted(by_name)):
        learned = learn([one for one in field if one.name not in held], vector_of)
        own = [by_name[name] for name in held]
        own = [*own, *map(shortened, own)]
        found.append([group for one in own for group in groups_of(one, learned, vector_of)])
    learned = learn(field, vector_of)
    found.append([g for one in corpora for g in groups_of(one, learned, vector_of)])
    return found


def judged_by_folds(parts: Sequence[Sequence[Group]], by: str) -> list[Judged]:
    """Judge each fold by trees that saw the others."""
    found: list[Judged] = []
    for at in range(FOLDS):
        seen = [one for place, part in enumerate(parts) if place != at for one in part]
        held = [one for one in parts[at] if one.kind in JUDGED]
        found += map(Judged, held, scores(fit(seen, by=by), held, by=by))
    return found


def forest_of(parts: Sequence[Sequence[Group]], by: str) -> Forest:
    """Learn the trees of all groups, and judge the recipe by folds."""
    every = judged_by_folds(parts, by)
    judged = [one for one in every if not one.group.is_short]
    heats = temperatures_of(judged)
    for kind in JUDGED:
        of_kind = [one for one in every if one.group.kind == kind]
        for line in figures_of(of_kind, heats):
            print(f"{by}, folds, {kind}: {line}", flush=True)
    booster = fit([one for part in parts for one in part], by=by)
    return Forest(
        FEATURES[by],
        trees_of(booster),
        heats,
        (prior_of(judged, "given", heats), prior_of(judged, "rich", heats)),
    )


def prior_of(judged: Sequence[Judged], kind: str, heats: Heats) -> Prior:
    """Return how sure the verdicts of folds are, and how right. kind: of registries."""
    counts, rights = np.zeros(BINS), np.zeros(BINS)
    for one in judged:
        if one.group.kind != kind:
            continue
        lead, is_right = one.lead(heats)
        place = min(int(lead * BINS), BINS - 1)
        counts[place] += 1
        rights[place] += is_right
    shares = counts / counts.sum()
    right = (rights + 1) / (counts + 2)
    return Prior(tuple(np.round(shares, 5).tolist()), tuple(np.round(right, 4).tolist()))


def trained(folder: Path) -> Parameters:
    """Train all parameters. folder: of the corpora."""
    field, corpora = load_field(), load_corpora(folder)
    vector_of = vectors_of([*field, *corpora])
    parts = described(field, corpora, vector_of)
    learned = learn(field, vector_of)
    parameters = Parameters(
        format=FORMAT,
        version="",
        trained_on=("field", *(one.name for one in corpora)),
        encoder=model_sha256(),
        shares=dict(learned.shares),
        goes_on=dict(learned.goes_on),
        goes_on_meaning=tuple(learned.goes_on_meaning.tolist()),
        words=forest_of(parts, "words"),
        meaning=forest_of(parts, "meaning"),
    )
    return msgspec.structs.replace(parameters, version=version_of(msgspec.json.encode(parameters)))


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/train_topics.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="compare with the file that ships")
    options = parser.parse_args()
    folder = dialogues_folder()
    if folder is None:
        print(
            f"training needs the corpora: set {DIALOGUES_VARIABLE} to a folder with agents.json, "
            "star_train.jsonl.gz, massive_es_train.jsonl.gz and clinc150_train.jsonl.gz"
        )
        return 2
    path = Path(package.__file__).with_name(FILE)
    content = msgspec.json.encode(trained(folder)) + b"\n"
    if not options.check:
        path.write_bytes(content)
        print(f"{path.name}: {len(content):,} bytes")
        return 0
    is_right = path.read_bytes() == content
    print(f"{path.name} is {'' if is_right else 'not '}what the data give, byte for byte")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
