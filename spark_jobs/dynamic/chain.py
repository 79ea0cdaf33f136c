"""The stages of a topology at work: who hears what of whom, and what each does about it.

Every stage has a regulator, which looks at the stage's own queue a few times a second and signals the stage above
through the control topic; one listener hands out what comes in there. Neither knows more than its neighbour.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from progress import Journal
from pyspark.sql.streaming.listener import StreamingQueryListener

from .control import Message, decode, encode
from .failing import ASIDE, FAILED
from .frontier import Frontier, covers
from .kafka import TopicEnds, control_sender
from .pressure import Act, PressureRules, Throttle, Watch
from .replacement import ReplacementRules, Ring, task_of
from .replay import EDEN, SPACES
from .stage import Stage
from .trail import FrontierLog, by_queue

LOOK_EVERY_S = 0.25
SIGN_OF_LIFE_S = 2.0
ANSWER_S = 10.0
# At the end, what a store had not written before a crash may still be on its way to it.
CATCH_UP_S = 20.0


@dataclass(frozen=True)
class Replacement:
    """When a stage is replaced, and how.

    `window_s`: length of the windows in which failures are counted. `most`: tasks of a stage. `slots`: of the cluster,
    for all stages together.
    """

    rules: ReplacementRules
    window_s: float
    warm: bool
    most: int
    slots: int


class Regulator(threading.Thread):
    """One stage's look at itself: its queue (back-pressure), its failures (replacement), the lease of its limit."""

    def __init__(
        self,
        stage: Stage,
        above: Stage | None,
        pressure: PressureRules | None,
        replacement: Replacement | None,
        control: str,
        journal: Journal,
        others: Sequence[Stage] = (),
    ) -> None:
        super().__init__(name=f"regulator-{stage.name}", daemon=True)
        self._stage, self._above, self._control, self._journal = stage, above, control, journal
        self._watch = Watch(pressure) if pressure and above else None
        self._throttle = Throttle(pressure.divisor) if pressure else None
        self._replacement, self._others = replacement, others
        self._ring = Ring(replacement.rules) if replacement else None
        self._ends = TopicEnds(stage.plan.bootstrap, stage.plan.inputs.values(), stage.plan.partitions)
        self._failed = 0
        self._window_ends_s = time.monotonic() + (replacement.window_s if replacement else 0)
        self._seen: tuple[float, int] | None = None
        self._rate = 0.0
        self._sign_s = 0.0
        self.stopped = threading.Event()
        self.trouble: Exception | None = None
        self.most_queued = 0

    @property
    def stage_name(self) -> str:
        """Of which stage this is the regulator."""
        return self._stage.name

    def run(self) -> None:
        """Looks until stopped; an error is kept for the main thread."""
        try:
            while not self.stopped.wait(LOOK_EVERY_S):
                self._look(time.monotonic())
        except Exception as error:
            self.trouble = error

    def hear(self, message: Message) -> None:
        """A message on the control topic that is meant for this stage."""
        if message.act in (FAILED, ASIDE):
            self._failed += message.count if message.act == FAILED else 0
            self._journal.write(message.act, stage=self._stage.name, count=message.count)
            return
        if self._throttle is None or message.act not in list(Act):
            return
        before = self._throttle.limit
        self._throttle.hear(Act(message.act), time.monotonic(), self._stage.progress.rows_per_s)
        self._apply(message.act, before)

    def release(self, why: str) -> None:
        """Nobody can take the limit back any more: it is given up."""
        if self._throttle is not None and self._throttle.limit is not None:
            before = self._throttle.limit
            self._throttle.release()
            self._apply(why, before)

    def _look(self, now_s: float) -> None:
        queue = self._queue(now_s)
        self.most_queued = max(self.most_queued, queue)
        if self._throttle is not None:
            before = self._throttle.limit
            if self._throttle.check(now_s):
                self._apply("no sign of life", before)
        if self._watch is not None:
            self._press(now_s, queue)
        if self._replacement is not None:
            if not self._stage.is_settled:
                # The time without a stage made tuples wait, which says nothing about its new parallelism.
                self._failed = 0
                self._window_ends_s = now_s + self._replacement.window_s
            elif now_s >= self._window_ends_s:
                self._close_window(self._replacement, now_s)

    def _queue(self, now_s: float) -> int:
        """Tuples that wait in the input; notes how fast they come."""
        found = self._ends.read()
        position = self._stage.progress.position
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
        act = self._watch.look(now_s, queue, self._rate)
        if act is None:
            if self._watch.steps and now_s - self._sign_s >= SIGN_OF_LIFE_S and self._tell(Act.KEEP):
                self._sign_s = now_s
            return
        if self._tell(act):
            self._watch.sent(act, now_s, queue)
            self._sign_s = now_s
            self._journal.write("signal", stage=self._stage.name, to=self._above.name, act=act, queue=queue)

    def _tell(self, act: Act) -> bool:
        """Puts a signal on the control topic; whether it stands there."""
        assert self._above is not None
        to = control_sender(self._stage.plan.bootstrap)
        try:
            to.send(self._control, None, encode(Message(self._stage.name, self._above.name, act)))
            to.flush()
        except (ConnectionError, KafkaException):
            return False
        return True

    def _apply(self, why: str, before: float | None) -> None:
        assert self._throttle is not None
        limit = self._throttle.limit
        self._stage.limit(limit)
        if limit != before:
            self._journal.write("limit", stage=self._stage.name, limit=limit, why=why)

    def _close_window(self, replacement: Replacement, now_s: float) -> None:
        assert self._ring is not None
        self._window_ends_s = now_s + replacement.window_s
        failed, self._failed = self._failed, 0
        old = self._stage.parallelism
        free = replacement.slots - sum(other.parallelism for other in self._others)
        wanted = self._ring.close_window(failed, old, min(replacement.most, free))
        if wanted == old:
            return
        self._journal.write("replacing", stage=self._stage.name, parallelism=wanted, before=old, failed=failed)
        gap_s = self._stage.replace(wanted, warm=replacement.warm)
        groups = self._stage.plan.groups
        moved = sum(task_of(group, old) != task_of(group, wanted) for group in range(groups))
        self._journal.write(
            "replaced", stage=self._stage.name, parallelism=wanted, before=old, warm=replacement.warm,
            gap_s=round(gap_s, 3), moved=moved, groups=groups,
        )  # fmt: skip


class Hearing(threading.Thread):
    """Reads the control topic from its present end, and hands each message to the stage that is meant."""

    def __init__(self, bootstrap: str, topic: str, regulators: dict[str, Regulator]) -> None:
        super().__init__(name="hearing", daemon=True)
        self._regulators = regulators
        settings = {"bootstrap.servers": bootstrap, "group.id": "faultline-control", "enable.auto.commit": False}
        self._consumer = Consumer({**settings, "auto.offset.reset": "latest"})
        end = self._consumer.get_watermark_offsets(TopicPartition(topic, 0), ANSWER_S)[1]
        self._consumer.assign([TopicPartition(topic, 0, end)])
        self.stopped = threading.Event()

    def run(self) -> None:
        """Reads until stopped. With the topic gone no limit can be taken back, so all are given up."""
        while not self.stopped.is_set():
            found = self._consumer.poll(LOOK_EVERY_S)
            if found is None:
                continue
            if found.error():
                for regulator in self._regulators.values():
                    regulator.release("control topic gone")
                self.stopped.wait(LOOK_EVERY_S)
                continue
            message = decode(found.value())
            if message is not None and message.to in self._regulators:
                self._regulators[message.to].hear(message)
        self._consumer.close()


class ChainListener(StreamingQueryListener):
    """Turns what the queries report into the progress of stages, and the frontier of the chain."""

    def __init__(self, stages: list[Stage], log: FrontierLog, journal: Journal) -> None:
        self._stages = {stage.name: stage for stage in stages}
        self._numbers = {stage.name: number for number, stage in enumerate(stages)}
        self._log, self._journal = log, journal
        self._frontier = Frontier(len(stages))
        self._owed: dict[str, int] = {}
        self._lock = threading.Lock()
        self._outputs = {
            stage.name: TopicEnds(stage.plan.bootstrap, [stage.plan.output], stages[number + 1].plan.partitions)
            for number, stage in enumerate(stages[:-1])
            if stage.plan.output
        }
        first = stages[0].plan
        spaces = [first.inputs[space] for space in SPACES if space in first.inputs]
        self._spaces = TopicEnds(first.bootstrap, spaces, first.partitions) if spaces else None

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 (Spark's name)
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = json.loads(event.progress.json)
        name, _, generation = (progress.get("name") or "").rpartition("-")
        stage = self._stages.get(name)
        if stage is None or "addBatch" not in progress["durationMs"]:
            return  # a rehearsal, or a look that found nothing
        position = by_queue(progress["sources"][0]["endOffset"])
        duration_s = progress["durationMs"]["triggerExecution"] / 1000
        output = next(iter(self._outputs[stage.name].read().values())) if stage.name in self._outputs else {}
        stage.reported(position, progress["numInputRows"], duration_s, int(generation))
        self._journal.write(
            "batch", stage=stage.name, batch=progress["batchId"], rows=progress["numInputRows"],
            seconds=duration_s, parallelism=stage.parallelism, ends=position[EDEN],
        )  # fmt: skip
        planned_ns = time.time_ns() - int(duration_s * 1e9)
        with self._lock:
            if stage.name == "source":
                self._frontier.took(position[EDEN], planned_ns, output)
            else:
                self._frontier.passed(self._numbers[stage.name], position[EDEN], output)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass

    def resume(self) -> None:
        """After a restart: what was on its way is known again, by how far each stage had come and put out."""
        now_ns = time.time_ns()
        *_, above, _ = self._stages
        self._owed = next(iter(self._outputs[above].read().values()))
        with self._lock:
            for name, stage in self._stages.items():
                ends = stage.progress.position.get(EDEN)
                if not ends:
                    return
                output = next(iter(self._outputs[name].read().values())) if name in self._outputs else {}
                if name == "source":
                    self._frontier.took(ends, now_ns, output)
                else:
                    self._frontier.passed(self._numbers[name], ends, output)

    def advance(self) -> None:
        """Commits what has become complete."""
        with self._lock:
            reached = self._frontier.advance(self._replays_wait)
        if reached is not None:
            self._log.commit(reached)

    def is_caught_up(self) -> bool:
        """Whether the last stage has taken in all that there was at the start. What it acknowledged before a crash and
        its store had not written it takes in again, and the frontier knows nothing of that.
        """
        *_, last = self._stages.values()
        return covers(last.progress.position.get(EDEN, {}), self._owed)

    def say_behind(self) -> None:
        """Leaves word that the end did not wait for what the store still lacks."""
        *_, last = self._stages.values()
        self._journal.write("behind", position=last.progress.position.get(EDEN, {}), owed=self._owed)

    def _replays_wait(self) -> bool:
        if self._spaces is None:
            return False
        position = self._stages["source"].progress.position
        read = sum(sum(position.get(space, {}).values()) for space in SPACES)
        return sum(sum(ends.values()) for ends in self._spaces.read().values()) > read


class Chain:
    """All stages with their regulators, from the start to the end of the program."""

    def __init__(
        self, stages: list[Stage], regulators: list[Regulator], listener: ChainListener, hearing: Hearing
    ) -> None:
        self._stages, self._regulators, self._listener, self._hearing = stages, regulators, listener, hearing
        self._primer = 0

    def warm_up(self, records: int, batches: int) -> None:
        """Lets the source take the first `records` in so many batches; a start that is past them does nothing."""
        source = self._stages[0]
        position = source.progress.position.get(EDEN, {})
        if sum(position.values()) >= records:
            return
        source.limit(records / batches)
        self._primer = records

    def run(self, ended: Callable[[], bool], poll_s: float) -> None:
        """Starts all stages and keeps them going until `ended`. Raises what a stage or a regulator failed with."""
        for stage in reversed(self._stages):
            stage.start()
        helpers = (*self._regulators, self._hearing)
        for helper in helpers:
            helper.start()
        while not ended():
            self._step(poll_s)
        for regulator in self._regulators:
            regulator.stopped.set()
        deadline = time.monotonic() + CATCH_UP_S
        while not self._listener.is_caught_up():
            if time.monotonic() > deadline:
                self._listener.say_behind()
                break
            self._step(poll_s)
        self._hearing.stopped.set()
        for stage in self._stages:
            stage.stop()

    def _step(self, poll_s: float) -> None:
        """A look at what has failed and what has become complete."""
        for stage in self._stages:
            failure = stage.query.exception() if stage.query is not None else None
            if failure is not None:
                raise failure
        for regulator in self._regulators:
            if regulator.trouble is not None:
                raise regulator.trouble
        self._listener.advance()
        taken = sum(self._stages[0].progress.position.get(EDEN, {}).values())
        if self._primer and taken >= self._primer:
            self._primer = 0
            self._stages[0].limit(None)
        time.sleep(poll_s)
