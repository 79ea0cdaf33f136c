"""Running chain of stages: controllers, control messages and progress.

Every stage has a controller, which signals the stage above through the control topic. One listener distributes these
messages, and another tracks the progress of the stages.
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
from .stage_controller import CHECK_INTERVAL_S, StageController
from .stage_queries import FrontierLog, Stage, offsets_by_queue

BROKER_TIMEOUT_S = 10.0
# Time at shutdown for results that a store had not written before a crash.
CATCH_UP_S = 20.0
# Time limit for a running replacement at shutdown.
REPLACEMENT_TIMEOUT_S = 130.0
# Logged part of a rejected message.
MAX_LOGGED_BYTES = 200


class ControlListener(threading.Thread):
    """Thread that reads the control topic from its current end and passes each message to its stage."""

    def __init__(
        self, bootstrap: str, topic: str, controllers: dict[str, StageController], journal: JsonLinesWriter
    ) -> None:
        super().__init__(name="control", daemon=True)
        self._controllers = controllers
        settings = {**connection(bootstrap), "group.id": "faultline-control", "enable.auto.commit": False}
        self._consumer = Consumer({**settings, "auto.offset.reset": "latest"})
        self._place = TopicPartition(topic, 0)
        self._journal = journal
        self.stopped = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        """Read until stopped; keep an error for the main thread."""
        try:
            while not self.stopped.is_set():
                self._poll()
        except Exception as error:
            self.error = error
        self._consumer.close()

    def _poll(self) -> None:
        """Read one message. If the topic fails, limits can no longer be withdrawn, so release them all."""
        try:
            if not self._consumer.assignment():
                end = self._consumer.get_watermark_offsets(self._place, BROKER_TIMEOUT_S)[1]
                self._consumer.assign([TopicPartition(self._place.topic, 0, end)])
            found = self._consumer.poll(CHECK_INTERVAL_S)
            if found is not None and found.error():
                raise KafkaException(found.error())
        except KafkaException:
            for controller in self._controllers.values():
                controller.release("control topic gone")
            self.stopped.wait(CHECK_INTERVAL_S)
            return
        if found is None:
            return
        message = decode(found.value())
        if message is None or message.to not in self._controllers:
            self._journal.write("refused", value=(found.value() or b"")[:MAX_LOGGED_BYTES].decode(errors="replace"))
        else:
            self._controllers[message.to].handle(message)


class ChainListener(StreamingQueryListener):
    """Query listener that updates the progress of stages and the frontier of the chain."""

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
            return  # a warm-up query, or a trigger without a batch
        position = offsets_by_queue(progress["sources"][0]["endOffset"])
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
        # After the update of the frontier, which must include the source's new position.
        emitted = None if before is None else until_now - before
        stage.reported(position, progress["numInputRows"], emitted, duration_s, int(generation))

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass

    def resume(self) -> None:
        """Restore the frontier after a restart from the input and output positions of each stage."""
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
        """Commit what has become complete."""
        with self._lock:
            reached = self._frontier.advance(self._replays_wait)
        if reached is not None:
            self._log.commit(reached)

    def is_caught_up(self) -> bool:
        """Return whether the last stage has read all input that existed at the start.

        After a crash it reads again what it acknowledged but its store had not written; the frontier does not cover
        that.
        """
        *_, last = self._stages.values()
        return covers(last.progress.position.get(EDEN, {}), self._owed)

    def log_incomplete(self) -> None:
        """Write that shutdown did not wait for the missing results of the store."""
        *_, last = self._stages.values()
        self._journal.write("behind", position=last.progress.position.get(EDEN, {}), owed=self._owed)

    def _replays_wait(self) -> bool:
        if self._spaces is None:
            return False
        position = self._stages["source"].progress.position
        read = sum(sum(position.get(space, {}).values()) for space in SPACES)
        return sum(sum(ends.values()) for ends in self._spaces.read().values()) > read


class Chain:
    """All stages with their controllers."""

    def __init__(
        self, stages: list[Stage], controllers: list[StageController], listener: ChainListener, control: ControlListener
    ) -> None:
        self._stages, self._controllers, self._listener, self._control = stages, controllers, listener, control
        self._primer = 0

    def warm_up(self, records: int, batches: int) -> None:
        """Limit the source to the first `records` in this number of batches; no effect if it is past them."""
        source = self._stages[0]
        position = source.progress.position.get(EDEN, {})
        if sum(position.values()) >= records:
            return
        source.limit_batches(-(-records // batches))
        self._primer = records

    def run(self, ended: Callable[[], bool], poll_s: float) -> None:
        """Run all stages until `ended`.

        Raises the errors of stages and controllers.
        """
        for stage in reversed(self._stages):
            stage.start()
        helpers = (*self._controllers, self._control)
        for helper in helpers:
            helper.start()
        while not ended():
            self._step(poll_s)
        for controller in self._controllers:
            controller.stopped.set()
        for controller in self._controllers:
            controller.finish(REPLACEMENT_TIMEOUT_S)  # a query started later would not be stopped
        self._raise_errors()
        deadline = time.monotonic() + CATCH_UP_S
        while not self._listener.is_caught_up():
            if time.monotonic() > deadline:
                self._listener.log_incomplete()
                break
            self._step(poll_s)
        self._control.stopped.set()
        for stage in self._stages:
            stage.stop()

    def _raise_errors(self) -> None:
        for stage in self._stages:
            failure = stage.query.exception() if stage.query is not None else None
            if failure is not None:
                raise failure
        for helper in (*self._controllers, self._control):
            if helper.error is not None:
                raise helper.error

    def _step(self, poll_s: float) -> None:
        """Check for failures and advance the frontier."""
        self._raise_errors()
        self._listener.advance()
        taken = sum(self._stages[0].progress.position.get(EDEN, {}).values())
        if self._primer and taken >= self._primer:
            self._primer = 0
            self._stages[0].limit_batches(None)
        time.sleep(poll_s)
