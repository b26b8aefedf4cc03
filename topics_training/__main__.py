"""The command: train the parameters that ship, check them, or cross-validate the recipe."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from routing_service.topics.parameters import Parameters, parse_parameters, shipped_parameters
from topics_training.corpora import DIALOGUES_VARIABLE, MAY_SHIP, dialogues_folder, load
from topics_training.cross_validation import tables
from topics_training.train import train

SHIPPED = Path(__file__).parent.parent / "routing_service" / "topics" / "parameters.json"


def written(parameters: Parameters) -> bytes:
    """Return parameters as a file: a line for each tree and word, so that changes can be read."""
    plain = msgspec.to_builtins(parameters)
    lines = ["{"]
    for key, value in plain.items():
        if key == "words":
            lines.append(f'"words":{_by_word(value)},')
        elif key == "groups":
            groups = ",\n".join(
                f'{{"name":{_json(group["name"])},"biases":{_json(group["biases"])},'
                f'"tokens":{_by_word(group["tokens"])}}}'
                for group in value
            )
            lines.append(f'"groups":[\n{groups}\n],')
        elif isinstance(value, dict) and "trees" in value:
            trees = ",\n".join(_json(tree) for tree in value["trees"])
            head = f'"features":{_json(value["features"])},\n"base":{_json(value["base"])}'
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
    parser.add_argument("--check", action="store_true", help="compare with the file that ships")
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
    if not (folder / "agents.json").is_file():
        print(f"{folder} has no agents.json; set {DIALOGUES_VARIABLE} to the folder of dialogues")
        return 2
    if options.cross_validate:
        ours = [load(name) for name in MAY_SHIP]
        shipped = parse_parameters(shipped_parameters())
        for line in tables(ours, [load("sgd")], shipped, options.played_each):
            print(line, flush=True)
        return 0
    trained = written(train([load(name) for name in MAY_SHIP]))
    if not options.check:
        SHIPPED.write_bytes(trained)
        print(f"{SHIPPED.name}: {len(trained)} bytes")
        return 0
    if trained != shipped_parameters():
        print(f"{SHIPPED.name} is not what the corpora give: run make topics and commit it")
        return 1
    print(f"{SHIPPED.name} is what the corpora give, byte for byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())
