"""Adaptive replacement (Lu et al. 2020, algorithm 2, equations 2 to 5): parallelism of a stage, and keys to move."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReplacementRules:
    """Parameters of replacement.

    `windows`: size of the ring (A). `decay`: weight of a window relative to the next newer one. `threshold`: of the
    weighted dispersion (C), in tuples².
    """

    windows: int = 5
    decay: float = 0.8
    threshold: float = 100.0


def mean(failed: Sequence[int]) -> float:
    """Return the failed tuples per window, E(M) (equation 2)."""
    return sum(failed) / len(failed)


def dispersion(failed: Sequence[int], decay: float) -> float:
    """Return the weighted dispersion S² (equation 3) of `failed`, from the oldest window to the newest, of weight 1."""
    centre, newest = mean(failed), len(failed) - 1
    return sum(decay ** (newest - age) * (one - centre) ** 2 for age, one in enumerate(failed)) / len(failed)


class Ring:
    """Failed tuples of the newest windows, which determine the parallelism."""

    def __init__(self, rules: ReplacementRules) -> None:
        self._rules = rules
        self._failed: deque[int] = deque(maxlen=rules.windows)

    def close_window(self, failed: int, parallelism: int, most: int) -> int:
        """Record a finished window, and return the new parallelism of the stage, at most `most`.

        It doubles if the dispersion exceeds the threshold and more tuples failed than the mean, and halves if fewer
        did. It stays if the double exceeds `most` or the ring is not full. In contrast to the paper, a change clears
        the ring, because failures of the old parallelism would halve the new one again.
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
    """Return the task of a group of keys (equation 5, for any parallelism).

    When the parallelism doubles, half of the groups keep their task; the others move up by the old parallelism.
    """
    return group % parallelism


def groups_of(task: int, parallelism: int, groups: int) -> list[int]:
    """Return the groups of keys (partitions of the input topic) that a task reads."""
    return [group for group in range(groups) if task_of(group, parallelism) == task]
