"""Gradient-boosted regression trees of fixed depth over binned features (Friedman 2001), as little as is needed to
predict when a program's next call comes. Needs numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["BoostedTrees"]

Array = np.ndarray[Any, np.dtype[Any]]


class BoostedTrees:
    """Least-squares boosting. All nodes of a level are split at once, each by its own best feature and bin."""

    def __init__(
        self, *, trees: int = 120, depth: int = 4, rate: float = 0.08, least: int = 20, bins: int = 24
    ) -> None:
        self._trees, self._depth, self._rate, self._least, self._bins = trees, depth, rate, least, bins
        self._edges: list[Array] = []
        self._base = 0.0
        self._fitted: list[tuple[list[tuple[Array, Array]], Array]] = []

    def fit(self, features: Array, target: Array) -> BoostedTrees:
        """Learns `target` (one number per row). Deterministic. Raises ValueError if there are no rows."""
        rows, columns = features.shape
        if not rows:
            raise ValueError("there is nothing to learn from: no row")
        shares = np.linspace(0, 1, self._bins + 1)[1:-1]
        self._edges = [np.unique(np.quantile(features[:, j], shares)) for j in range(columns)]
        self._base = float(target.mean())
        binned = self._binned(features)
        cells = binned + np.arange(columns) * self._bins
        rest, every = target - self._base, np.arange(rows)
        for _ in range(self._trees):
            node = np.zeros(rows, dtype=np.int64)
            levels = []
            for level in range(self._depth):
                feature, cut = self._split(cells, node, rest, 2**level)
                levels.append((feature, cut))
                node = 2 * node + (binned[every, feature[node]] > cut[node])
            count = np.bincount(node, minlength=2**self._depth)
            value = self._rate * np.bincount(node, weights=rest, minlength=2**self._depth) / (count + 5.0)
            self._fitted.append((levels, value))
            rest = rest - value[node]
        return self

    def _split(self, cells: Array, node: Array, rest: Array, nodes: int) -> tuple[Array, Array]:
        columns = cells.shape[1]
        size = nodes * columns * self._bins
        key = (node[:, None] * (columns * self._bins) + cells).ravel()
        shape = (nodes, columns, self._bins)
        count = np.bincount(key, minlength=size).reshape(shape).cumsum(2)
        total = np.bincount(key, weights=np.repeat(rest, columns), minlength=size).reshape(shape).cumsum(2)
        right, all_count, all_total = count[:, :, -1:] - count, count[:, :, -1:], total[:, :, -1:]
        allowed = (count >= self._least) & (right >= self._least)
        gain = np.where(
            allowed,
            total**2 / np.maximum(count, 1) + (all_total - total) ** 2 / np.maximum(right, 1)
            - all_total**2 / np.maximum(all_count, 1),
            -1.0,
        ).reshape(nodes, -1)  # fmt: skip
        best = gain.argmax(1)
        cut = np.where(gain[np.arange(nodes), best] > 0, best % self._bins, self._bins)
        return best // self._bins, cut

    def _binned(self, features: Array) -> Array:
        return np.stack([np.searchsorted(e, features[:, j]) for j, e in enumerate(self._edges)], axis=1)

    def predict(self, features: Array) -> Array:
        """One number per row."""
        binned = self._binned(features)
        every, found = np.arange(len(binned)), np.full(len(binned), self._base)
        for levels, value in self._fitted:
            node = np.zeros(len(binned), dtype=np.int64)
            for feature, cut in levels:
                node = 2 * node + (binned[every, feature[node]] > cut[node])
            found += value[node]
        return found
