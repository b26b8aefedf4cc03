"""A forest compiled to one Python function: a quarter of the time of walking its trees.

Rule: only numbers that were checked get into the function's source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from agent_routing_topics.model.parameters import Forest, Tree

_TREES_A_FUNCTION: Final = 16
"""Of 120 trees, so many at once need a seventh of the memory to be compiled that all at once do."""

Score = Callable[[Sequence[float]], float]


def compiled(forest: Forest) -> Score:
    """Return what gives the score that goes with a row of features.

    Compiling takes about 0.2 ms a tree of eight leaves, once.
    """
    parts = [
        _function(forest.trees[at : at + _TREES_A_FUNCTION])
        for at in range(0, len(forest.trees), _TREES_A_FUNCTION)
    ]

    def score(row: Sequence[float]) -> float:
        return sum([part(row) for part in parts])

    return score


def _function(trees: Sequence[Tree]) -> Callable[[Sequence[float]], float]:
    lines = ["def summed(row):", "    odds = 0.0"]
    lines += [f"    odds += {_expression(tree, 0)}" for tree in trees]
    lines.append("    return odds")
    made: dict[str, Callable[[Sequence[float]], float]] = {}
    exec(compile("\n".join(lines), "<topic forest>", "exec"), made)  # noqa: S102 - see the rule
    return made["summed"]


def _expression(tree: Tree, node: int) -> str:
    """Return the value of a row from a node on, as Python."""
    if tree.feature[node] < 0:
        return repr(float(tree.bound[node]))
    left, right = _expression(tree, tree.left[node]), _expression(tree, tree.right[node])
    bound = float(tree.bound[node])
    return f"({left} if row[{int(tree.feature[node])}] <= {bound!r} else {right})"
