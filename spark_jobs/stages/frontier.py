"""Frontier of the chain: the input position up to which the last stage has acknowledged every tuple.

Each stage knows only its own batches: its input position and the output position after it. A batch of the source
creates a token, which moves down as each stage reads the output of the one above.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Ends = Mapping[str, int]


@dataclass
class _Token:
    """Source batch in transit. `taken`: end offsets of the input. `waits_for`: end offsets for the next stage."""

    taken: dict[str, int]
    planned_ns: int
    stage: int
    waits_for: Ends


@dataclass(frozen=True)
class Reached:
    """Completed end offsets of the input, and the planning time of the batch that read them (ns)."""

    ends: dict[str, int]
    planned_ns: int


class Frontier:
    """Tokens in transit through `stages` stages; the source is the first."""

    def __init__(self, stages: int) -> None:
        self._last = stages - 1
        self._tokens: deque[_Token] = deque()
        # Input and output positions of each later stage after its last batch.
        self._reached: dict[int, tuple[Ends, Ends]] = {}
        self._done: Reached | None = None

    def took(self, ends: Ends, planned_ns: int, output: Ends) -> None:
        """Record the end of a source batch: its input and output positions."""
        self._tokens.append(_Token(dict(ends), planned_ns, 1, dict(output)))
        self._walk()

    def passed(self, stage: int, ends: Ends, output: Ends) -> None:
        """Record the end of a later stage's batch: input and output positions; {} for the last stage."""
        self._reached[stage] = dict(ends), dict(output)
        self._walk()

    def advance(self, replays_wait: Callable[[], bool]) -> Reached | None:
        """Return what has become complete since the last call; None if nothing. `replays_wait` is called lazily.

        Failed tuples are read again with newer input. Input is complete after its first attempt if newer input follows.
        The newest input is complete only if no token is in transit and no failed tuple waits.
        """
        done = self._done
        if done is None:
            return None
        newer = any(token.taken != done.ends for token in self._tokens)
        if not newer and (self._tokens or replays_wait()):
            return None
        self._done = None
        return done

    def _walk(self) -> None:
        """Move tokens as far as possible: a stage may have read a token's input long ago."""
        for token in self._tokens:
            while (reached := self._reached.get(token.stage)) and covers(reached[0], token.waits_for):
                token.stage, token.waits_for = token.stage + 1, reached[1]
        while self._tokens and self._tokens[0].stage > self._last:
            token = self._tokens.popleft()
            earlier = self._done.planned_ns if self._done else token.planned_ns
            self._done = Reached(token.taken, earlier)


def covers(ends: Ends, wanted: Ends) -> bool:
    """Return whether `ends` has reached `wanted` on every partition."""
    return all(ends.get(partition, 0) >= offset for partition, offset in wanted.items())
