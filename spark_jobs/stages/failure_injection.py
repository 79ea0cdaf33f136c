"""Tuples that fail when a stage takes them in: those that waited too long, and those that a test makes fail."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException

from .kafka import Message, control_sender, encode, sender

FAILED, ASIDE = "failed", "set_aside"
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class FailureInjector:
    """What fails at `stage`, and what becomes of it.

    `timeout_s`: a tuple that waited longer in the stage's queue fails (None: none does). `share` of all tuples fails
    by chance, and whatever begins with `poison` always does. With `replay` a failed tuple goes to From, which is
    one of `spaces` (space -> topic), or after `max_attempts` to `set_aside`; without, it is counted and
    goes on. `control`: the topic on which the number of failures is told.
    """

    stage: str
    control: str
    timeout_s: float | None = None
    share: float = 0.0
    poison: str = ""
    replay: bool = False
    max_attempts: int = 10
    spaces: dict[str, str] | None = None
    set_aside: str = ""

    def sift(self, batch: Any, timestamps_ms: list[int], bootstrap: str, space: str) -> Any:
        """The rows of `batch` (a RecordBatch of the source's columns) that go on; `space` is From at present."""
        failed = self.failed(batch, np.array(timestamps_ms, dtype=np.int64), time.time_ns() // 1_000_000)
        count = int(failed.sum())
        if not count:
            return batch
        aside = 0
        if self.replay:
            space_topic = self.spaces[space] if self.spaces else ""
            aside = self._put_back(bootstrap, batch.filter(pa.array(failed)), space_topic)
            batch = batch.filter(pa.array(~failed))
        tell = control_sender(bootstrap, self.stage)
        with contextlib.suppress(ConnectionError, KafkaException):  # numbers only: the tuples are safe without
            for act, number in ((FAILED, count), (ASIDE, aside)):
                if number:
                    tell.send(self.control, None, encode(Message(self.stage, act, number)))
            tell.flush()
        return batch

    def failed(self, batch: Any, timestamps_ms: npt.NDArray[np.int64], now_ms: int) -> npt.NDArray[np.bool_]:
        """Which rows fail. Chance depends on the place in the input alone, so a task that is tried again agrees."""
        failed = np.zeros(batch.num_rows, dtype=bool)
        if self.timeout_s is not None:
            failed |= now_ms - timestamps_ms > self.timeout_s * 1000
        if self.share:
            failed |= _draws(batch.column("part").to_numpy(), batch.column("at").to_numpy()) < self.share
        if self.poison:
            failed |= pc.starts_with(batch.column("text"), self.poison).to_numpy(zero_copy_only=False)
        return failed

    def _put_back(self, bootstrap: str, rows: Any, topic: str) -> int:
        """Sends failed tuples to where they are read again, or set aside; how many were that.

        They stand there before the batch that leaves them out can be committed.
        """
        aside, put = 0, sender(bootstrap)
        for text, attempts in zip(rows.column("text").to_pylist(), rows.column("number").to_pylist(), strict=True):
            again = attempts + 1 < self.max_attempts
            put.send(topic if again else self.set_aside, str(attempts + 1), text)
            aside += not again
        put.flush()
        return aside


def _draws(part: npt.NDArray[Any], at: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each place (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = (at.astype(np.uint64) * np.uint64(64) + part.astype(np.uint64) + np.uint64(1)) * _MIX
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (mixed ^ (mixed >> np.uint64(31))).astype(np.float64) / 2.0**64
