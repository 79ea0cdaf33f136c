"""A stage's look at itself, a few times a second: its queue, its failures, and what the stage below asks of it.

It signals the stage above through the control topic, and knows of nothing beyond its neighbours.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from workload_runner import JsonLinesWriter

from .failure_injection import ASIDE, FAILED
from .kafka import Message, TopicEnds, control_sender, encode
from .pressure import PressureRules, PressureSignal, PressureWatch, Throttle
from .replacement import ReplacementRules, Ring, task_of
from .stage_queries import Stage

LOOK_EVERY_S = 0.25
SIGN_OF_LIFE_S = 2.0
NOTE_EVERY_S = 1.0


@dataclass(frozen=True)
class Replacement:
    """When a stage is replaced, and how.

    `window_s`: length of the windows in which failures are counted. `most`: tasks of a stage. `slots`: of the cluster,
    for all stages together, which share them out under `deciding`.
    """

    rules: ReplacementRules
    window_s: float
    warm: bool
    most: int
    slots: int
    deciding: threading.Lock = field(default_factory=threading.Lock)


class StageController(threading.Thread):
    """One stage's look at itself: its queue (back-pressure), its failures (replacement), the lease of its limit."""

    def __init__(
        self,
        stage: Stage,
        above: Stage | None,
        pressure: PressureRules | None,
        replacement: Replacement | None,
        control: str,
        journal: JsonLinesWriter,
        others: Sequence[Stage] = (),
    ) -> None:
        super().__init__(name=f"regulator-{stage.name}", daemon=True)
        self._stage, self._above, self._control, self._journal = stage, above, control, journal
        self._pressure = None if stage.plan.ends_chain else pressure
        self._watch = PressureWatch(pressure) if pressure and above else None
        self._throttle = Throttle(pressure.divisor) if pressure else None
        self._steering = threading.Lock()
        self._replacement, self._others = replacement, others
        self._replacing: threading.Thread | None = None
        self._ring = Ring(replacement.rules) if replacement else None
        self._ends = TopicEnds(stage.plan.bootstrap, stage.plan.inputs.values(), stage.plan.partitions)
        self._failed = 0
        self._window_ends_s = time.monotonic() + (replacement.window_s if replacement else 0)
        self._seen: tuple[float, int] | None = None
        self._rate = 0.0
        self._sign_s = 0.0
        self.stopped = threading.Event()
        self.trouble: Exception | None = None
        self._most_queued, self._noted_s = 0, 0.0
        self._signalled_at = 0, 0
        self._leave_room()

    @property
    def stage_name(self) -> str:
        """Of which stage this is the regulator."""
        return self._stage.name

    def run(self) -> None:
        """Looks until stopped; an error is kept for the main thread."""
        try:
            while not self.stopped.wait(LOOK_EVERY_S):
                self._look(time.monotonic())
            self._note(0, math.inf)
        except Exception as error:
            self.trouble = error

    def hear(self, message: Message) -> None:
        """A message on the control topic that is meant for this stage."""
        if message.act in (FAILED, ASIDE):
            self._journal.write(message.act, stage=self._stage.name, count=message.count)
            if message.act == FAILED:
                with self._steering:
                    self._failed += message.count
        elif message.act in list(PressureSignal):
            self._steer(message.act, lambda throttle: throttle.hear(
                message.count, time.monotonic(), self._stage.progress.rows_per_s
            ))  # fmt: skip

    def release(self, why: str) -> None:
        """Nobody can take the limit back any more: it is given up."""
        self._steer(why, Throttle.release)

    def finish(self, timeout_s: float) -> None:
        """Waits for the look and the replacement in work, once `stopped` is set."""
        self.join(timeout_s)
        if self._replacing is not None:
            self._replacing.join(timeout_s)

    def _look(self, now_s: float) -> None:
        queue = self._queue(now_s)
        self._note(queue, now_s)
        self._leave_room()
        self._steer("no sign of life", lambda throttle: throttle.check(now_s))
        if self._watch is not None:
            self._press(now_s, queue)
        if self._replacement is None:
            return
        if self._is_being_replaced():
            # The time without a stage made tuples wait, which says nothing about its new parallelism.
            self._take_failed()
            self._window_ends_s = now_s + self._replacement.window_s
        elif now_s >= self._window_ends_s:
            self._close_window(self._replacement, now_s)

    def _leave_room(self) -> None:
        if self._pressure is not None:
            self._stage.leave_room(self._pressure.batch_most(self._stage.progress.fan_out))

    def _note(self, queue: int, now_s: float) -> None:
        """Writes down the longest queue of each second."""
        self._most_queued = max(self._most_queued, queue)
        if now_s - self._noted_s >= NOTE_EVERY_S:
            self._journal.write("queued", stage=self._stage.name, most=self._most_queued)
            self._most_queued, self._noted_s = 0, now_s

    def _is_being_replaced(self) -> bool:
        at_work = self._replacing is not None and self._replacing.is_alive()
        return at_work or not self._stage.is_settled

    def _take_failed(self) -> int:
        with self._steering:
            failed, self._failed = self._failed, 0
        return failed

    def _queue(self, now_s: float) -> int:
        """Tuples that wait in the input, those of the batch in work left out; notes how fast they come."""
        found = self._ends.read()
        position = self._stage.taken()
        queue, arrived = 0, 0
        for name, topic in self._stage.plan.inputs.items():
            for part, end in found.get(topic, {}).items():
                arrived += end
                queue += max(0, end - position.get(name, {}).get(part, 0))
        if self._seen is not None and now_s > self._seen[0]:
            # Topics grow in bursts, one a batch of the stage above: a mean over some of them.
            self._rate += 0.1 * ((arrived - self._seen[1]) / (now_s - self._seen[0]) - self._rate)
        self._seen = now_s, arrived
        return queue

    def _press(self, now_s: float, queue: int) -> None:
        assert self._watch is not None and self._above is not None
        above, own = self._above.progress.batches, self._stage.progress.batches
        # The batch that was in work above still had the old rate.
        seen = above >= self._signalled_at[0] + 2 and own >= self._signalled_at[1] + 1
        act = self._watch.look(now_s, queue, self._rate, seen=seen)
        if act is None:
            if self._watch.steps and now_s - self._sign_s >= SIGN_OF_LIFE_S and self._tell(PressureSignal.KEEP):
                self._sign_s = now_s
            return
        if self._tell(act):
            self._watch.sent(act, now_s, queue)
            self._signalled_at = above, own
            self._sign_s = now_s
            self._journal.write("signal", stage=self._stage.name, to=self._above.name, act=act, queue=queue)

    def _tell(self, act: PressureSignal) -> bool:
        """Puts a signal on the control topic; whether it stands there."""
        assert self._watch is not None and self._above is not None
        to = control_sender(self._stage.plan.bootstrap, self._stage.name)
        try:
            steps = self._watch.steps + {PressureSignal.SLOW: 1, PressureSignal.EASE: -1, PressureSignal.KEEP: 0}[act]
            to.send(self._control, None, encode(Message(self._above.name, act, steps)))
            to.flush()
        except (ConnectionError, KafkaException):
            return False
        return True

    def _steer(self, why: str, change: Callable[[Throttle], object]) -> None:
        """What several threads do: a change to this stage's limit, which counts from the next batch on."""
        if self._throttle is None:
            return
        with self._steering:
            before = self._throttle.limit
            change(self._throttle)
            limit = self._throttle.limit
            if limit != before:
                self._stage.limit(limit)
                self._journal.write("limit", stage=self._stage.name, limit=limit, why=why)

    def _close_window(self, replacement: Replacement, now_s: float) -> None:
        assert self._ring is not None
        self._window_ends_s = now_s + replacement.window_s
        failed, old = self._take_failed(), self._stage.parallelism
        with replacement.deciding:
            free = replacement.slots - sum(other.wanted for other in self._others)
            wanted = self._stage.wanted = self._ring.close_window(failed, old, min(replacement.most, free))
        if wanted == old:
            return
        self._journal.write("replacing", stage=self._stage.name, parallelism=wanted, before=old, failed=failed)
        # It takes seconds, in which the stage above must go on hearing of this one.
        self._replacing = threading.Thread(
            target=self._replace, args=(replacement, wanted, old), name=f"replacing-{self._stage.name}", daemon=True
        )
        self._replacing.start()

    def _replace(self, replacement: Replacement, wanted: int, old: int) -> None:
        try:
            gap_s = self._stage.replace(wanted, warm=replacement.warm)
        except Exception as error:
            self.trouble = error
            return
        groups = self._stage.plan.groups
        moved = sum(task_of(group, old) != task_of(group, wanted) for group in range(groups))
        self._journal.write(
            "replaced", stage=self._stage.name, parallelism=wanted, before=old, warm=replacement.warm,
            gap_s=round(gap_s, 3), moved=moved, groups=groups,
        )  # fmt: skip
