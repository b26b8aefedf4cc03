"""A conditional logit: one of several options is chosen by a weighted sum of its features.

Owns the fit. Rule: the same rows give the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize


def fit(
    groups: Sequence[tuple[Sequence[Sequence[float]], int]], penalty: float = 1.0
) -> NDArray[np.float64]:
    """Return the weight of each feature. groups: the options' features, and the chosen option."""
    table = np.array([row for rows, _ in groups for row in rows], dtype=np.float64)
    sizes = np.array([len(rows) for rows, _ in groups])
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    chosen = starts + np.array([place for _, place in groups])
    scale = table.std(0) + 1e-9
    table = table / scale

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        scores = table @ weights
        scores -= np.repeat(np.maximum.reduceat(scores, starts), sizes)
        powers = np.exp(scores)
        wholes = np.add.reduceat(powers, starts)
        value = np.log(wholes).sum() - scores[chosen].sum() + penalty * (weights @ weights)
        share = powers / np.repeat(wholes, sizes)
        gradient = table.T @ share - table[chosen].sum(0) + 2 * penalty * weights
        return float(value), gradient

    start = np.zeros(table.shape[1])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return np.asarray(found.x / scale)
