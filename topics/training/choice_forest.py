"""Trees that score the options of a message, learned together: a softmax over each message's.

Owns the fit, its temperatures and the figures of folds. Rule: what is judged was left out by whole
registries; the same rows give the same trees.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import lightgbm
import numpy as np
from numpy.typing import NDArray

from agent_routing_topics.model.parameters import Forest, Temperatures, Tree

TREES: Final = 180
LEAVES: Final = 12
FOLDS: Final = 3
_SETTINGS: Final = {
    "learning_rate": 0.08,
    "num_leaves": LEAVES,
    "min_data_in_leaf": 60,
    "feature_fraction": 0.35,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 10,
    "max_bin": 127,
    "use_missing": False,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "seed": 1,
    "verbose": -1,
}
_EXAMPLES_BOUNDS: Final = (6.0, 15.0)
_TEMPERATURES: Final = tuple(step / 20 for step in range(8, 33))
_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Group:
    """The options of one message, and which of them is right; -1: its owner is none of them.

    registry: of the field, "" of other corpora: those are in every fold's training. kind: how many
    examples the registry had. weight: in the training.
    """

    rows: NDArray[np.float32]
    right: int
    registry: str = ""
    kind: str = ""
    weight: float = 1.0
    language: str = ""
    examples_mean: float = 0.0
    is_opening: bool = False
    present: int = -1
    is_scored: bool = True


@dataclass(frozen=True, slots=True)
class Fitted:
    """Trees, their temperatures, and the scores of field messages by trees that saw others."""

    forest: Forest
    temperatures: Temperatures
    judged: list[tuple[Group, NDArray[np.float64]]]


def fit_choice(names: tuple[str, ...], groups: Sequence[Group], *, judge: bool = True) -> Fitted:
    """Learn from groups. judge: whether to judge by folds first, which temperatures come from."""
    judged: list[tuple[Group, NDArray[np.float64]]] = []
    for held in _folds(groups) if judge else []:
        model = _train([one for one in groups if one.registry not in held])
        of_fold = [one for one in groups if one.registry in held]
        scores = model.predict(np.concatenate([one.rows for one in of_fold]))
        ends = np.cumsum([len(one.rows) for one in of_fold])[:-1]
        judged += list(zip(of_fold, np.split(scores, ends), strict=True))
    model = _train(groups)
    forest = Forest(names, tuple(_tree(one) for one in model.dump_model()["tree_info"]))
    return Fitted(forest, _temperatures(judged), judged)


def _folds(groups: Sequence[Group]) -> list[set[str]]:
    names = sorted({one.registry for one in groups} - {""}, key=lambda name: (name[-2:], name))
    random.Random(0).shuffle(names)
    return [set(names[at::FOLDS]) for at in range(FOLDS)]


def _train(groups: Sequence[Group]) -> Any:
    kept = [one for one in groups if one.is_scored and one.right >= 0]
    table = np.concatenate([one.rows for one in kept])
    sizes = np.array([len(one.rows) for one in kept])
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    wanted = np.zeros(len(table))
    wanted[starts + np.array([one.right for one in kept])] = 1
    weights = np.repeat([one.weight for one in kept], sizes)

    def objective(scores: Any, _rows: Any) -> tuple[Any, Any]:
        shares = _softmax(scores, starts, sizes)
        gradient = (shares - wanted) * weights
        return gradient, np.maximum(shares * (1 - shares), 1e-3) * weights * 2

    rows = lightgbm.Dataset(table, label=wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lightgbm.train({**_SETTINGS, "objective": objective}, rows, num_boost_round=TREES)


def _softmax(scores: Any, starts: Any, sizes: Any) -> Any:
    powers = np.exp(scores - np.repeat(np.maximum.reduceat(scores, starts), sizes))
    return powers / np.repeat(np.add.reduceat(powers, starts), sizes)


def _temperatures(judged: Sequence[tuple[Group, NDArray[np.float64]]]) -> Temperatures:
    found: dict[tuple[bool, int], float] = {}
    for is_opening in (True, False):
        for place in range(3):
            own = [
                (one, scores)
                for one, scores in judged
                if one.is_scored
                and one.right >= 0
                and one.is_opening == is_opening
                and sum(one.examples_mean >= bound for bound in _EXAMPLES_BOUNDS) == place
            ]
            found[is_opening, place] = (
                min(_TEMPERATURES, key=lambda heat, own=own: _lost(own, heat), default=1.0)
                if own
                else 1.0
            )
    opening = tuple(found[True, place] for place in range(3))
    later = tuple(found[False, place] for place in range(3))
    return Temperatures(_EXAMPLES_BOUNDS, opening, later)  # type: ignore[arg-type]


def _lost(own: Sequence[tuple[Group, NDArray[np.float64]]], heat: float) -> float:
    lost = 0.0
    for one, scores in own:
        cool = scores / heat
        lost += float(np.log(np.exp(cool - cool.max()).sum()) + cool.max() - cool[one.right])
    return lost


def figures(fitted: Fitted, kind: str) -> dict[str, float]:
    """Return the figures of field messages judged by folds. kind: of registries."""
    rights, leads, highs, languages = [], [], [], []
    changes, found, false, firsts, first_rights = 0, 0, 0, 0, 0
    for one, scores in fitted.judged:
        if one.kind != kind or not one.is_scored:
            continue
        heat = fitted.temperatures.of(one.examples_mean, is_opening=one.is_opening)
        cool = scores / heat
        shares = np.exp(cool - cool.max())
        shares /= shares.sum()
        chosen, ordered = int(shares.argmax()), np.sort(shares)[::-1]
        is_right = chosen == one.right
        rights.append(is_right)
        highs.append(ordered[0])
        leads.append(ordered[0] - (ordered[1] if len(ordered) > 1 else 0))
        languages.append(one.language)
        changes += one.present >= 0 and one.right != one.present
        found += one.present >= 0 and one.right != one.present and is_right
        false += one.present >= 0 and one.right == one.present and not is_right
        firsts += one.present < 0
        first_rights += one.present < 0 and is_right
    right, high, language = np.array(rights), np.array(highs), np.array(languages)
    order = np.argsort(np.array(leads), kind="stable")
    told = {"n": float(len(right)), "right": float(right.mean())}
    for share in (0.1, 0.2, 0.3):
        asked = right.copy()
        asked[order[: round(share * len(right))]] = True
        told[f"asked {share}"] = float(asked.mean())
        if share == 0.2:
            told |= {
                f"{part} {name}": float(values[language == name].mean())
                for name in sorted(set(languages))
                for part, values in (("right", right), ("asked", asked))
            }
    bins = np.minimum((high * 10).astype(int), 9)
    gaps = [
        abs(right[bins == at].mean() - high[bins == at].mean()) * (bins == at).mean()
        for at in set(bins.tolist())
    ]
    return told | {
        "found": found / max(1, changes),
        "false": false / len(right),
        "first": first_rights / max(1, firsts),
        "ece": float(sum(gaps)),
    }


def _tree(info: dict[str, Any]) -> Tree:
    """Return a tree of the library's as lists, its root first."""
    feature: list[int] = []
    bound: list[float] = []
    left: list[int] = []
    right: list[int] = []

    def add(node: dict[str, Any]) -> int:
        at = len(feature)
        for values in (feature, left, right):
            values.append(-1)
        bound.append(0.0)
        if "leaf_value" in node and "split_feature" not in node:
            bound[at] = _short(node["leaf_value"])
            return at
        feature[at], bound[at] = int(node["split_feature"]), _short(node["threshold"])
        left[at] = add(node["left_child"])
        right[at] = add(node["right_child"])
        return at

    add(info["tree_structure"])
    return Tree(tuple(feature), tuple(bound), tuple(left), tuple(right))


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
