"""The command: train the parameters that ship, check them, or cross-validate the recipe."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agent_routing_topics.meaning.meaning_parameters import MeaningParameters
from agent_routing_topics.model.parameters import (
    Parameters,
    parse_parameters,
    permissive_parameters,
)
from topics.training.choice_forest import Fitted, figures
from topics.training.corpora import (
    DIALOGUES_VARIABLE,
    PERMISSIVE,
    SHARE_ALIKE,
    Corpus,
    dialogues_folder,
    load,
)
from topics.training.cross_validation import tables
from topics.training.field import load_field
from topics.training.meanings import train_meaning
from topics.training.train import train

TOPICS = Path(__file__).parent.parent / "routing_service" / "topics" / "model"
SHIPPED = {
    "permissive": (TOPICS / "parameters.json", PERMISSIVE),
    "sgd": (TOPICS / "sgd" / "parameters.json", (*PERMISSIVE, *SHARE_ALIKE)),
}
"""The files that ship, and the corpora that each is made of."""


def written(parameters: Parameters | MeaningParameters) -> bytes:
    """Return parameters as a file: a line for each tree and word, so that changes can be read."""
    plain = msgspec.to_builtins(parameters)
    lines = ["{"]
    for key, value in plain.items():
        if key in ("words", "manner", "manner_asked"):
            lines.append(f'"{key}":{_by_word(value)},')
        elif key == "groups":
            groups = ",\n".join(
                f'{{"name":{_json(group["name"])},"biases":{_json(group["biases"])},'
                f'"tokens":{_by_word(group["tokens"])}}}'
                for group in value
            )
            lines.append(f'"groups":[\n{groups}\n],')
        elif isinstance(value, dict) and "trees" in value:
            trees = ",\n".join(_json(tree) for tree in value["trees"])
            head = f'"features":{_json(value["features"])}'
            lines.append(f'"{key}":{{{head},\n"trees":[\n{trees}\n]}},')
        else:
            lines.append(f'"{key}":{_json(value)},')
    lines[-1] = lines[-1].removesuffix(",")
    return "\n".join([*lines, "}", ""]).encode()


def _by_word(values: dict[str, object]) -> str:
    body = ",\n".join(f"{_json(word)}:{_json(value)}" for word, value in values.items())
    return f"{{\n{body}\n}}"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="scripts/train_topics.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the files that ship")
    parser.add_argument("--only", choices=SHIPPED, help="one of the files that ship")
    parser.add_argument(
        "--cross-validate", action="store_true", help="judge the recipe on what it has not seen"
    )
    parser.add_argument(
        "--played-each",
        type=int,
        default=1,
        metavar="N",
        help="play one dialogue in N where cross-validation judges",
    )
    options = parser.parse_args()
    folder = dialogues_folder()
    has_corpora = (folder / "agents.json").is_file()
    if not has_corpora:
        print(
            f"{folder} has no corpora ({DIALOGUES_VARIABLE}): words are as in the files that ship"
        )
        if options.cross_validate:
            return 2
    wanted = [options.only] if options.only else list(SHIPPED)
    is_right = True
    for name in wanted:
        path, corpora = SHIPPED[name]
        ours = [load(corpus) for corpus in corpora] if has_corpora else []
        if options.cross_validate:
            others = [load(corpus) for corpus in SHARE_ALIKE if corpus not in corpora]
            shipped = parse_parameters(permissive_parameters())
            for line in tables(ours, others, shipped, options.played_each):
                print(line, flush=True)
            continue
        before = None if ours else parse_parameters(path.read_bytes())
        for file, content in _trained(path, ours, before):
            if options.check:
                is_right &= _check(file, content)
            else:
                file.write_bytes(content)
                print(f"{file.relative_to(TOPICS)}: {len(content)} bytes", flush=True)
    return 0 if is_right else 1


def _trained(
    path: Path, corpora: list[Corpus], before: Parameters | None
) -> Iterator[tuple[Path, bytes]]:
    """Yield each file that is trained, and print how it was judged by folds."""
    trained = train(corpora, load_field(), before=before)
    _print_figures("words", trained.fitted)
    yield path, written(trained.parameters)
    meaning = train_meaning(trained.asked, trained.basis, trained.worths)
    _print_figures("meaning", meaning.fitted)
    yield path.with_name("meaning.json"), written(meaning.parameters)


def _print_figures(name: str, fitted: Fitted) -> None:
    for kind in ("given", "rich"):
        told = ", ".join(f"{key} {value:.3f}" for key, value in figures(fitted, kind).items())
        print(f"{name}, field registries held out, {kind}: {told}", flush=True)


def _check(path: Path, trained: bytes) -> bool:
    """Say whether a file is what the corpora give."""
    name = path.relative_to(TOPICS)
    is_right = path.read_bytes() == trained
    if is_right:
        print(f"{name} is what the corpora give, byte for byte", flush=True)
    else:
        print(f"{name} is not what the corpora give: run make topics and commit it", flush=True)
    return is_right


if __name__ == "__main__":
    sys.exit(main())
