"""Chance that takes every turn: replays a path of choices, knows the weight of the path and finds the next one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from typing import TypeVar

from torch import Tensor

Result = TypeVar("Result")


class EnumeratingStream:
    """A ``contracts.RandomStream`` that follows ``path`` (one option number a draw), then takes first options.

    Options of probability zero do not exist; a draw with a single option is no turn. ``weight`` is the exact
    probability (float64) of the turns taken.
    """

    def __init__(self, path: Seq[int] = ()) -> None:
        self._path = path
        self.taken: list[int] = []
        self._options: list[int] = []
        self.weight = 1.0

    def categorical(self, probabilities: Tensor) -> int:
        values = probabilities.double().tolist()
        assert all(value >= 0 for value in values), "a negative or undefined probability"
        possible = [index for index, value in enumerate(values) if value > 0]
        total = math.fsum(values)
        return possible[self._turn([values[index] / total for index in possible])]

    def bernoulli(self, probability: float) -> bool:
        assert probability >= 0, "a negative or undefined probability"
        chance = min(1.0, probability)
        if chance in (0.0, 1.0):
            return chance == 1.0
        return self._turn([chance, 1.0 - chance]) == 0

    def _turn(self, weights: list[float]) -> int:
        assert weights, "nothing is possible"
        if len(weights) == 1:
            return 0
        at = len(self.taken)
        option = self._path[at] if at < len(self._path) else 0
        self.taken.append(option)
        self._options.append(len(weights))
        self.weight *= weights[option]
        return option

    def next_path(self) -> list[int] | None:
        """The path after this one in order, None after the last."""
        path = list(self.taken)
        while path:
            path[-1] += 1
            if path[-1] < self._options[len(path) - 1]:
                return path
            path.pop()
        return None


def explore(run: Callable[[EnumeratingStream], Result]) -> Iterator[tuple[float, Result]]:
    """Every possible outcome of ``run`` with its exact weight; the weights sum to 1."""
    path: list[int] | None = []
    while path is not None:
        stream = EnumeratingStream(path)
        result = run(stream)
        yield stream.weight, result
        path = stream.next_path()
