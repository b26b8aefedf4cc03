"""Trees that score the options of a message, learned together: a softmax over each message's.

Rule: the same rows give the same trees: one thread, one seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import lightgbm
import numpy as np

from agent_routing_topics.model.forest import Tree

SETTINGS: Final = {
    "learning_rate": 0.06,
    "num_leaves": 23,
    "min_data_in_leaf": 60,
    "feature_fraction": 0.3,
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
TREES: Final = 200
DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Group:
    """The options of one message: rows by words and by meaning.

    right: the option that it is for, -1 = none of them. active: the option of staying, or -1.
    registry, kind, language: whose message it is, with which choice of examples. heat: which of the
    temperatures holds.
    """

    words: Any
    meaning: Any
    right: int
    active: int
    registry: str
    kind: str
    language: str
    stretch: int
    is_locked: bool
    heat: int
    weight: float
    is_short: bool


def fit(groups: Sequence[Group], *, by: str, trees: int = TREES) -> Any:
    """Return a booster over the rows by words or meaning."""
    kept = [one for one in groups if one.right >= 0]
    table = np.concatenate([getattr(one, by) for one in kept])
    sizes = np.array([len(one.words) for one in kept])
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    wanted = np.zeros(len(table))
    wanted[starts + np.array([one.right for one in kept])] = 1
    weights = np.repeat([one.weight for one in kept], sizes)

    def objective(scores: Any, _rows: Any) -> tuple[Any, Any]:
        powers = np.exp(scores - np.repeat(np.maximum.reduceat(scores, starts), sizes))
        shares = powers / np.repeat(np.add.reduceat(powers, starts), sizes)
        return (shares - wanted) * weights, np.maximum(shares * (1 - shares), 1e-3) * weights * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lightgbm.train(
            {**SETTINGS, "objective": objective},
            lightgbm.Dataset(table, label=wanted),
            num_boost_round=trees,
        )


def scores(booster: Any, groups: Sequence[Group], *, by: str) -> list[Any]:
    """Return the scores of each group's options."""
    found = booster.predict(np.concatenate([getattr(one, by) for one in groups]))
    return np.split(found, np.cumsum([len(one.words) for one in groups])[:-1])


def trees_of(booster: Any) -> tuple[Tree, ...]:
    """Return a booster's trees in the form of the parameters."""
    return tuple(_tree(each["tree_structure"]) for each in booster.dump_model()["tree_info"])


def _tree(root: dict[str, Any]) -> Tree:
    nodes: list[list[Any]] = []
    leaves: list[float] = []

    def add(node: dict[str, Any]) -> int:
        if "leaf_value" in node and "split_feature" not in node:
            leaves.append(round(float(node["leaf_value"]), DIGITS))
            return -len(leaves)
        place = len(nodes)
        nodes.append([int(node["split_feature"]), _shortest(float(node["threshold"])), 0, 0])
        nodes[place][2] = add(node["left_child"])
        nodes[place][3] = add(node["right_child"])
        return place

    add(root)
    columns = [tuple(column) for column in zip(*nodes, strict=True)] or [()] * 4
    return Tree(*columns, tuple(leaves))


def _shortest(bound: float) -> float:
    """Return a bound in five digits: bounds lie between two values of the training."""
    return float(f"{bound:.5g}")
