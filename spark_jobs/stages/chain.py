"""The stages of a topology at work: who hears what of whom, and what each does about it.

Every stage has a regulator, which signals the stage above through the control topic; one listener hands out what comes
in there, another follows how far the stages have come.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from pyspark.sql.streaming.listener import StreamingQueryListener
from workload_runner import JsonLinesWriter

from .frontier import Frontier, covers
from .kafka import TopicEnds, connection, decode
from .replay import EDEN, SPACES
from .stage_controller import LOOK_EVERY_S, StageController
from .stage_queries import FrontierLog, Stage, by_queue

ANSWER_S = 10.0
# At the end, what a store had not written before a crash may still be on its way to it.
CATCH_UP_S = 20.0
# A replacement that is in work as the end comes.
FINISH_S = 130.0
# Of a message that was refused.
SHOWN_BYTES = 200


class ControlListener(threading.Thread):
    """Reads the control topic from its present end, and hands each message to the stage that is meant."""

    def __init__(
        self, bootstrap: str, topic: str, regulators: dict[str, StageController], journal: JsonLinesWriter
    ) -> None:
        super().__init__(name="hearing", daemon=True)
        self._regulators = regulators
        settings = {**connection(bootstrap), "group.id": "faultline-control", "enable.auto.commit": False}
        self._consumer = Consumer({**settings, "auto.offset.reset": "latest"})
        self._place = TopicPartition(topic, 0)
        self._journal = journal
        self.stopped = threading.Event()
        self.trouble: Exception | None = None

    def run(self) -> None:
        """Reads until stopped; an error is kept for the main thread."""
        try:
            while not self.stopped.is_set():
                self._hear()
        except Exception as error:
            self.trouble = error
        self._consumer.close()

    def _hear(self) -> None:
        """One message. With the topic gone no limit can be taken back, so all are given up."""
        try:
            if not self._consumer.assignment():
                end = self._consumer.get_watermark_offsets(self._place, ANSWER_S)[1]
                self._consumer.assign([TopicPartition(self._place.topic, 0, end)])
            found = self._consumer.poll(LOOK_EVERY_S)
            if found is not None and found.error():
                raise KafkaException(found.error())
        except KafkaException:
            for regulator in self._regulators.values():
                regulator.release("control topic gone")
            self.stopped.wait(LOOK_EVERY_S)
            return
        if found is None:
            return
        message = decode(found.value())
        if message is None or message.to not in self._regulators:
            self._journal.write("refused", value=(found.value() or b"")[:SHOWN_BYTES].decode(errors="replace"))
        else:
            self._regulators[message.to].hear(message)


class ChainListener(StreamingQueryListener):
    """Turns what the queries report into the progress of stages, and the frontier of the chain."""

    def __init__(self, stages: list[Stage], log: FrontierLog, journal: JsonLinesWriter) -> None:
        self._stages = {stage.name: stage for stage in stages}
        self._numbers = {stage.name: number for number, stage in enumerate(stages)}
        self._log, self._journal = log, journal
        self._frontier = Frontier(len(stages))
        self._owed: dict[str, int] = {}
        self._emitted: dict[str, int] = {}
        self._lock = threading.Lock()
        self._outputs = {
            stage.name: TopicEnds(stage.plan.bootstrap, [stage.plan.output], stages[number + 1].plan.partitions)
            for number, stage in enumerate(stages[:-1])
            if stage.plan.output
        }
        first = stages[0].plan
        spaces = [first.inputs[space] for space in SPACES if space in first.inputs]
        self._spaces = TopicEnds(first.bootstrap, spaces, first.partitions) if spaces else None

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        progress = json.loads(event.progress.json)
        name, _, generation = (progress.get("name") or "").rpartition("-")
        stage = self._stages.get(name)
        if stage is None or "addBatch" not in progress["durationMs"]:
            return  # a rehearsal, or a look that found nothing
        position = by_queue(progress["sources"][0]["endOffset"])
        duration_s = progress["durationMs"]["triggerExecution"] / 1000
        output = next(iter(self._outputs[stage.name].read().values())) if stage.name in self._outputs else {}
        self._journal.write(
            "batch", stage=stage.name, batch=progress["batchId"], rows=progress["numInputRows"],
            seconds=duration_s, parallelism=stage.parallelism, ends=position[EDEN],
        )  # fmt: skip
        until_now = sum(output.values())
        before = self._emitted.get(name)
        self._emitted[name] = until_now
        planned_ns = time.time_ns() - int(duration_s * 1e9)
        with self._lock:
            if stage.name == "source":
                self._frontier.took(position[EDEN], planned_ns, output)
            else:
                self._frontier.passed(self._numbers[stage.name], position[EDEN], output)
        # Only now: whoever sees the source's new position must find what it took in the frontier.
        emitted = None if before is None else until_now - before
        stage.reported(position, progress["numInputRows"], emitted, duration_s, int(generation))

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
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
        self, stages: list[Stage], regulators: list[StageController], listener: ChainListener, hearing: ControlListener
    ) -> None:
        self._stages, self._regulators, self._listener, self._hearing = stages, regulators, listener, hearing
        self._primer = 0

    def warm_up(self, records: int, batches: int) -> None:
        """Lets the source take the first `records` in so many batches; a start that is past them does nothing."""
        source = self._stages[0]
        position = source.progress.position.get(EDEN, {})
        if sum(position.values()) >= records:
            return
        source.limit_batches(-(-records // batches))
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
        for regulator in self._regulators:
            regulator.finish(FINISH_S)  # a query that it starts now would be nobody's
        self._raise_trouble()
        deadline = time.monotonic() + CATCH_UP_S
        while not self._listener.is_caught_up():
            if time.monotonic() > deadline:
                self._listener.say_behind()
                break
            self._step(poll_s)
        self._hearing.stopped.set()
        for stage in self._stages:
            stage.stop()

    def _raise_trouble(self) -> None:
        for stage in self._stages:
            failure = stage.query.exception() if stage.query is not None else None
            if failure is not None:
                raise failure
        for helper in (*self._regulators, self._hearing):
            if helper.trouble is not None:
                raise helper.trouble

    def _step(self, poll_s: float) -> None:
        """A look at what has failed and what has become complete."""
        self._raise_trouble()
        self._listener.advance()
        taken = sum(self._stages[0].progress.position.get(EDEN, {}).values())
        if self._primer and taken >= self._primer:
            self._primer = 0
            self._stages[0].limit_batches(None)
        time.sleep(poll_s)
