"""Controller of a stage: its queue, its failures, and requests of the stage below.

It signals the stage above through the control topic, and knows only its neighbours.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from workload_runner import JsonLinesWriter

from .failure_injection import FAILED, SET_ASIDE
from .kafka import Message, TopicEnds, control_sender, encode
from .pressure import PressureRules, PressureSignal, PressureWatch, Throttle
from .replacement import ReplacementRules, Ring, task_of
from .stage_queries import Stage

CHECK_INTERVAL_S = 0.25
KEEP_ALIVE_S = 2.0
QUEUE_LOG_INTERVAL_S = 1.0


@dataclass(frozen=True)
class Replacement:
    """Conditions and kind of a stage's replacement.

    `window_s`: length of the windows in which failures are counted. `most`: maximum tasks of a stage. `slots`: of the
    cluster, shared by all stages under the lock `deciding`.
    """

    rules: ReplacementRules
    window_s: float
    warm: bool
    most: int
    slots: int
    deciding: threading.Lock = field(default_factory=threading.Lock)


class StageController(threading.Thread):
    """Thread that controls one stage: back-pressure, replacement, and the lease of its limit."""

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
        super().__init__(name=f"controller-{stage.name}", daemon=True)
        self._stage, self._above, self._control, self._journal = stage, above, control, journal
        self._pressure = None if stage.plan.ends_chain else pressure
        self._watch = PressureWatch(pressure) if pressure and above else None
        self._throttle = Throttle(pressure.divisor) if pressure else None
        self._limit_lock = threading.Lock()
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
        self.error: Exception | None = None
        self._most_queued, self._noted_s = 0, 0.0
        self._signalled_at = 0, 0
        self._leave_room()

    @property
    def stage_name(self) -> str:
        """Name of the controlled stage."""
        return self._stage.name

    def run(self) -> None:
        """Check the stage until stopped; keep an error for the main thread."""
        try:
            while not self.stopped.wait(CHECK_INTERVAL_S):
                self._check(time.monotonic())
            self._note(0, math.inf)
        except Exception as error:
            self.error = error

    def handle(self, message: Message) -> None:
        """Handle a control message for this stage."""
        if message.act in (FAILED, SET_ASIDE):
            self._journal.write(message.act, stage=self._stage.name, count=message.count)
            if message.act == FAILED:
                with self._limit_lock:
                    self._failed += message.count
        elif message.act in list(PressureSignal):
            self._steer(message.act, lambda throttle: throttle.apply(
                message.count, time.monotonic(), self._stage.progress.rows_per_s
            ))  # fmt: skip

    def release(self, why: str) -> None:
        """Remove the limit, because it can no longer be withdrawn."""
        self._steer(why, Throttle.release)

    def finish(self, timeout_s: float) -> None:
        """Wait for the current check and replacement, once `stopped` is set."""
        self.join(timeout_s)
        if self._replacing is not None:
            self._replacing.join(timeout_s)

    def _check(self, now_s: float) -> None:
        queue = self._queue(now_s)
        self._note(queue, now_s)
        self._leave_room()
        self._steer("no sign of life", lambda throttle: throttle.check(now_s))
        if self._watch is not None:
            self._press(now_s, queue)
        if self._replacement is None:
            return
        if self._is_being_replaced():
            # Failures during the replacement do not reflect the new parallelism.
            self._take_failed()
            self._window_ends_s = now_s + self._replacement.window_s
        elif now_s >= self._window_ends_s:
            self._close_window(self._replacement, now_s)

    def _leave_room(self) -> None:
        if self._pressure is not None:
            self._stage.leave_room(self._pressure.batch_most(self._stage.progress.fan_out))

    def _note(self, queue: int, now_s: float) -> None:
        """Write the longest queue of each second."""
        self._most_queued = max(self._most_queued, queue)
        if now_s - self._noted_s >= QUEUE_LOG_INTERVAL_S:
            self._journal.write("queued", stage=self._stage.name, most=self._most_queued)
            self._most_queued, self._noted_s = 0, now_s

    def _is_being_replaced(self) -> bool:
        is_running = self._replacing is not None and self._replacing.is_alive()
        return is_running or not self._stage.is_settled

    def _take_failed(self) -> int:
        with self._limit_lock:
            failed, self._failed = self._failed, 0
        return failed

    def _queue(self, now_s: float) -> int:
        """Return the queued tuples of the input, without the running batch, and update the arrival rate."""
        found = self._ends.read()
        position = self._stage.taken()
        queue, arrived = 0, 0
        for name, topic in self._stage.plan.inputs.items():
            for part, end in found.get(topic, {}).items():
                arrived += end
                queue += max(0, end - position.get(name, {}).get(part, 0))
        if self._seen is not None and now_s > self._seen[0]:
            # Topics grow in bursts, one per batch of the stage above, so the rate is smoothed.
            self._rate += 0.1 * ((arrived - self._seen[1]) / (now_s - self._seen[0]) - self._rate)
        self._seen = now_s, arrived
        return queue

    def _press(self, now_s: float, queue: int) -> None:
        assert self._watch is not None and self._above is not None
        above, own = self._above.progress.batches, self._stage.progress.batches
        # The running batch of the stage above still has the old rate.
        seen = above >= self._signalled_at[0] + 2 and own >= self._signalled_at[1] + 1
        act = self._watch.evaluate(now_s, queue, self._rate, seen=seen)
        if act is None:
            if self._watch.steps and now_s - self._sign_s >= KEEP_ALIVE_S and self._send_signal(PressureSignal.KEEP):
                self._sign_s = now_s
            return
        if self._send_signal(act):
            self._watch.confirm(act, now_s, queue)
            self._signalled_at = above, own
            self._sign_s = now_s
            self._journal.write("signal", stage=self._stage.name, to=self._above.name, act=act, queue=queue)

    def _send_signal(self, act: PressureSignal) -> bool:
        """Send a signal to the control topic; return whether it was acknowledged."""
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
        """Change this stage's limit from any thread; it applies from the next batch on."""
        if self._throttle is None:
            return
        with self._limit_lock:
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
        # Runs in a thread, because it takes seconds and keep-alive signals must continue.
        self._replacing = threading.Thread(
            target=self._replace, args=(replacement, wanted, old), name=f"replacing-{self._stage.name}", daemon=True
        )
        self._replacing.start()

    def _replace(self, replacement: Replacement, wanted: int, old: int) -> None:
        try:
            gap_s = self._stage.replace(wanted, warm=replacement.warm)
        except Exception as error:
            self.error = error
            return
        groups = self._stage.plan.groups
        moved = sum(task_of(group, old) != task_of(group, wanted) for group in range(groups))
        self._journal.write(
            "replaced", stage=self._stage.name, parallelism=wanted, before=old, warm=replacement.warm,
            gap_s=round(gap_s, 3), moved=moved, groups=groups,
        )  # fmt: skip
