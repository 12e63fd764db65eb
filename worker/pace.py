"""Pace: what a step costs, learnt from the steps themselves. No tensor, no clock of its own."""

from collections.abc import Sequence

REMEMBERED = 0.98
"""Weight of a step's measurement after one more step: half of it is gone after 34 steps."""
STIFFNESS = 0.05
"""How strongly an estimate stays where it is while the steps say nothing about it."""
SCALE = (1.0, 8.0, 64.0)
"""Usual sizes of the three features, so that `STIFFNESS` means the same for each."""
LEARNING_STEPS = 4
MOST_OVER = 3.0
"""A step that took longer than so many times its prediction counts as that long: a stall is not a cost."""

Features = tuple[float, float, float]


class Pace:
    """Fits step_ms = a + b * decodes + c * prefill_tokens, none of them negative.

    Least squares over exponentially forgotten steps, with a ridge that pulls towards the last estimate (recursive
    least squares with directional memory: what the steps do not excite stays as it was). Solved anew each step.
    """

    def __init__(self) -> None:
        self._costs: Features = (0.0, 0.0, 0.0)
        self._products = [[0.0] * 3 for _ in range(3)]
        self._targets = [0.0] * 3
        self._steps = 0

    @property
    def is_known(self) -> bool:
        """Enough steps have been seen to predict one."""
        return self._steps >= LEARNING_STEPS

    @property
    def costs_ms(self) -> Features:
        """Of a step, of each decode in it, of each prefill token in it."""
        return self._costs

    def predict_ms(self, decodes: int, prefill_tokens: int) -> float:
        """What such a step should take; 0 while nothing is known."""
        base, decode, prefill = self._costs
        return base + decode * decodes + prefill * prefill_tokens if self.is_known else 0.0

    def observe(self, decodes: int, prefill_tokens: int, took_ms: float) -> None:
        """A step of this shape took so long."""
        if self.is_known:
            took_ms = min(took_ms, MOST_OVER * self.predict_ms(decodes, prefill_tokens) + 1)
        row: Features = (1.0, float(decodes), float(prefill_tokens))
        for i in range(3):
            self._targets[i] = REMEMBERED * self._targets[i] + row[i] * took_ms
            for j in range(3):
                self._products[i][j] = REMEMBERED * self._products[i][j] + row[i] * row[j]
        self._steps += 1
        self._costs = self._solve()

    def _solve(self) -> Features:
        """The least squares with what would be negative set to 0, one after the other."""
        free = [0, 1, 2]
        while True:
            matrix = [[self._products[i][j] + (self._ridge(i) if i == j else 0.0) for j in free] for i in free]
            targets = [self._targets[i] + self._ridge(i) * self._costs[i] for i in free]
            found = _gauss(matrix, targets)
            worst = min(range(len(free)), key=lambda place: found[place])
            if found[worst] >= 0 or len(free) == 1:
                costs = [0.0] * 3
                for place, feature in enumerate(free):
                    costs[feature] = max(0.0, found[place])
                return costs[0], costs[1], costs[2]
            del free[worst]

    @staticmethod
    def _ridge(feature: int) -> float:
        return STIFFNESS * SCALE[feature] ** 2


def _gauss(matrix: list[list[float]], targets: Sequence[float]) -> list[float]:
    """Solve a small symmetric positive definite system by elimination."""
    size = len(matrix)
    rows = [[*row, target] for row, target in zip(matrix, targets, strict=True)]
    for pivot in range(size):
        for below in range(pivot + 1, size):
            factor = rows[below][pivot] / rows[pivot][pivot]
            for column in range(pivot, size + 1):
                rows[below][column] -= factor * rows[pivot][column]
    found = [0.0] * size
    for pivot in reversed(range(size)):
        known = sum(rows[pivot][column] * found[column] for column in range(pivot + 1, size))
        found[pivot] = (rows[pivot][size] - known) / rows[pivot][pivot]
    return found
