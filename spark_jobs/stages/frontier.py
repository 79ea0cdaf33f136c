"""How far the whole chain has come: up to which record of the input the last stage has acknowledged every tuple.

Each stage only knows its own batches: how far it took its input, and how long its output was afterwards. A batch of the
source leaves a token, which walks down as each stage takes in what the one above had put out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Ends = Mapping[str, int]


@dataclass
class _Token:
    """`taken`: end offsets of the input. `waits_for`: what the next stage must take in, end offsets of its input."""

    taken: dict[str, int]
    planned_ns: int
    stage: int
    waits_for: Ends


@dataclass(frozen=True)
class Reached:
    """End offsets of the input that are through, and when the batch that took them in was planned (ns)."""

    ends: dict[str, int]
    planned_ns: int


class Frontier:
    """Tokens on their way through `stages` stages, the source being the first."""

    def __init__(self, stages: int) -> None:
        self._last = stages - 1
        self._tokens: deque[_Token] = deque()
        # Of each later stage: how far its input was taken at its last batch, and how long its output was then.
        self._reached: dict[int, tuple[Ends, Ends]] = {}
        self._done: Reached | None = None

    def took(self, ends: Ends, planned_ns: int, output: Ends) -> None:
        """The source ended a batch: it had taken the input up to `ends`, and its output was `output` long."""
        self._tokens.append(_Token(dict(ends), planned_ns, 1, dict(output)))
        self._walk()

    def passed(self, stage: int, ends: Ends, output: Ends) -> None:
        """A later stage ended a batch: it had taken its input up to `ends`; `output` as above, {} for the last."""
        self._reached[stage] = dict(ends), dict(output)
        self._walk()

    def advance(self, replays_wait: Callable[[], bool]) -> Reached | None:
        """What has become complete since the last call; None for nothing new. `replays_wait` is asked only if need be.

        What failed is read again together with newer input. So input is through with its first attempt once newer
        input follows it, but the newest only when nothing is on its way and no failed tuple waits: then
        everything is.
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
        """Lets tokens go as far as they can: a stage may have taken in all that one waits for long ago."""
        for token in self._tokens:
            while (reached := self._reached.get(token.stage)) and covers(reached[0], token.waits_for):
                token.stage, token.waits_for = token.stage + 1, reached[1]
        while self._tokens and self._tokens[0].stage > self._last:
            token = self._tokens.popleft()
            earlier = self._done.planned_ns if self._done else token.planned_ns
            self._done = Reached(token.taken, earlier)


def covers(ends: Ends, wanted: Ends) -> bool:
    """Whether `ends` has reached `wanted` on every partition."""
    return all(ends.get(partition, 0) >= offset for partition, offset in wanted.items())
