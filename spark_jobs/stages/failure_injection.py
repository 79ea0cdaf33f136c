"""Failures of tuples in a stage: by timeout, and injected by tests."""

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

FAILED, SET_ASIDE = "failed", "set_aside"
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class FailureInjector:
    """Failures at `stage`, and their treatment.

    `timeout_s`: a tuple that waited longer in the stage's queue fails (None: no timeout). `share` of all tuples fails
    at random, and texts that start with `poison` always fail. With `replay` a failed tuple is written to From, one of
    `spaces` (space -> topic), or after `max_attempts` to `set_aside`; without, it is counted and continues. `control`:
    the topic for the number of failures.
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
        """Return the rows of `batch` (columns of the source) that continue; `space` is the current From."""
        failed = self.failed(batch, np.array(timestamps_ms, dtype=np.int64), time.time_ns() // 1_000_000)
        count = int(failed.sum())
        if not count:
            return batch
        aside = 0
        if self.replay:
            space_topic = self.spaces[space] if self.spaces else ""
            aside = self._put_back(bootstrap, batch.filter(pa.array(failed)), space_topic)
            batch = batch.filter(pa.array(~failed))
        control = control_sender(bootstrap, self.stage)
        with contextlib.suppress(ConnectionError, KafkaException):  # only counts are lost
            for act, number in ((FAILED, count), (SET_ASIDE, aside)):
                if number:
                    control.send(self.control, None, encode(Message(self.stage, act, number)))
            control.flush()
        return batch

    def failed(self, batch: Any, timestamps_ms: npt.NDArray[np.int64], now_ms: int) -> npt.NDArray[np.bool_]:
        """Return which rows fail. Chance depends only on the input position, so retried tasks agree."""
        failed = np.zeros(batch.num_rows, dtype=bool)
        if self.timeout_s is not None:
            failed |= now_ms - timestamps_ms > self.timeout_s * 1000
        if self.share:
            failed |= _draws(batch.column("part").to_numpy(), batch.column("at").to_numpy()) < self.share
        if self.poison:
            failed |= pc.starts_with(batch.column("text"), self.poison).to_numpy(zero_copy_only=False)
        return failed

    def _put_back(self, bootstrap: str, rows: Any, topic: str) -> int:
        """Send failed tuples to be read again, or set aside; return the number set aside.

        They are written before the batch that omits them can be committed.
        """
        aside, put = 0, sender(bootstrap)
        for text, attempts in zip(rows.column("text").to_pylist(), rows.column("number").to_pylist(), strict=True):
            again = attempts + 1 < self.max_attempts
            put.send(topic if again else self.set_aside, str(attempts + 1), text)
            aside += not again
        put.flush()
        return aside


def _draws(part: npt.NDArray[Any], at: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each input position (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = (at.astype(np.uint64) * np.uint64(64) + part.astype(np.uint64) + np.uint64(1)) * _MIX
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (mixed ^ (mixed >> np.uint64(31))).astype(np.float64) / 2.0**64
