"""Adaptive replacement (Lu et al. 2020, algorithm 2, equations 2 to 5): when a stage gets another parallelism, which
one, and which keys move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReplacementRules:
    """`windows`: how many the ring holds (A). `decay`: by which a window weighs less than the next newer one.
    `threshold`: of the weighted dispersion (C), in tuples².
    """

    windows: int = 5
    decay: float = 0.8
    threshold: float = 100.0


def mean(failed: Sequence[int]) -> float:
    """Equation 2: E(M), failed tuples a window."""
    return sum(failed) / len(failed)


def dispersion(failed: Sequence[int], decay: float) -> float:
    """Equation 3: S², the weighted dispersion; `failed` from the oldest window to the newest, which weighs 1."""
    centre, newest = mean(failed), len(failed) - 1
    return sum(decay ** (newest - age) * (one - centre) ** 2 for age, one in enumerate(failed)) / len(failed)


class Ring:
    """Failed tuples of the newest windows, and what they say about the parallelism."""

    def __init__(self, rules: ReplacementRules) -> None:
        self._rules = rules
        self._failed: deque[int] = deque(maxlen=rules.windows)

    def close_window(self, failed: int, parallelism: int, most: int) -> int:
        """Notes a window that is over; the parallelism that the stage is to have from now on, `most` at most.

        Twice as much when more tuples failed than the mean and the dispersion lies above the threshold, half when
        fewer did; no change where the double is more than `most`. A ring that is not full yet decides nothing.
        With a change it begins anew, which the paper does not say: failures of the old stage say nothing about the new
        one, and would halve it again.
        """
        self._failed.append(failed)
        if len(self._failed) < self._rules.windows:
            return parallelism
        centre = mean(self._failed)
        wanted = parallelism
        if dispersion(self._failed, self._rules.decay) > self._rules.threshold and failed != centre:
            wanted = parallelism << 1 if failed > centre else parallelism >> 1
        wanted = parallelism if wanted > max(most, parallelism) else max(wanted, 1)
        if wanted != parallelism:
            self._failed.clear()
        return wanted


def task_of(group: int, parallelism: int) -> int:
    """The task that a group of keys belongs to: equation 5, for any parallelism.

    When it doubles, a group stays where it is or moves up by the old parallelism, so half of them keep their task.
    """
    return group % parallelism


def groups_of(task: int, parallelism: int, groups: int) -> list[int]:
    """The groups of keys (partitions of the input topic) that a task reads."""
    return [group for group in range(groups) if task_of(group, parallelism) == task]
