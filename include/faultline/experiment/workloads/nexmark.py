"""Nexmark on Structured Streaming: 24 queries over events from the engine or through Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from faultline.experiment.common_parameters import HIGHEST_RATE, Common
from faultline.experiment.prerequisites import PreloadGoal, Prepared
from faultline.experiment.workloads.nexmark_events import (
    AWAITING_TIME,
    ENGINE_DEFAULTS,
    KAFKA_RATE,
    PYTHON,
    RATE,
    TYPICAL_RPS,
    WATERMARK_S,
    NexmarkParameters,
    batch_events,
    pieces,
    preload_batches,
    reads,
    rules,
    take_events,
)
from faultline.experiment.workloads.protocol import MAX_RATE, Workload
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT

# Events per second of a query that stores every event, on two slow cores.
SLOWEST_QUERY_RPS = 10_000
# Events of the preload that warms up the JVM.
PRIMER_EVENTS = 10_000


class Nexmark(Workload[NexmarkParameters]):
    """Run one of 24 Nexmark queries; with `source=engine` there is no send schedule and no fault."""

    name = "nexmark"
    order = 40
    section = "Nexmark"
    parameters = NexmarkParameters
    capabilities = frozenset({"stateful"})
    program = "nexmark_query"
    whole = ("nexmark", "query")

    def defaults(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        # Defaults of the suite; events from the engine have no send schedule that a fault could delay.
        suite = {"watermark_s": WATERMARK_S, "disorder": 0.0, "fault": "none"}
        through_kafka = config.get("source") == "kafka"
        return {**suite, "rate": KAFKA_RATE} if through_kafka else {**suite, "rate": RATE, **ENGINE_DEFAULTS}

    def take(self, values: dict[str, Any]) -> None:
        values["events"] = take_events(values["events"] or {})

    def check(self, own: NexmarkParameters, common: Common) -> None:
        """Raise ValueError for parameters that the source or the query excludes."""
        if common.commit_mode not in ("aligned", "aligned-changelog"):
            raise ValueError(
                f"commit_mode: got {common.commit_mode}; expected aligned or aligned-changelog, since nexmark is "
                "stateful"
            )
        if common.state_store == "memory" and own.query in PYTHON:
            raise ValueError(
                f"state_store: got memory for query {own.query}; expected rocksdb, which transformWithState needs "
                "(UNSUPPORTED_FEATURE.STORE_BACKEND_NOT_SUPPORTED_FOR_TWS)"
            )
        if own.source == "kafka":
            for key in ("batch_events", "preload_events"):
                if getattr(own, key):
                    raise ValueError(
                        f"{key}: conflicts with source=kafka, where the send schedule sets the batches; fix: remove it"
                    )
            return
        if common.fault != "none":
            raise ValueError(
                f"fault: got {common.fault} with source=engine, whose events have no send schedule; expected none"
            )
        pieces(common)

    def check_here(self, own: NexmarkParameters, common: Common) -> None:
        if not query_file(own.query):
            raise ConfigError(f"query: missing file of {own.query} in spark_jobs/nexmark/queries; fix: restore it")

    def paced(self, config: Mapping[str, Any]) -> bool:
        return config.get("source") != "engine"

    def highest_rate(self, config: Mapping[str, Any]) -> float:
        return HIGHEST_RATE if config.get("source", "engine") == "engine" else MAX_RATE

    def has_python_workers(self, own: NexmarkParameters) -> bool:
        return own.query in PYTHON

    def source(self, own: NexmarkParameters, common: Common, repetition: int) -> dict[str, Any]:
        closing = own.query in AWAITING_TIME
        return {"source": "nexmark", "rules": rules(own, common, repetition), "closing": closing}

    def primer_lines(self, own: NexmarkParameters) -> int:
        return PRIMER_EVENTS

    def drained_batches(self, own: NexmarkParameters) -> int:
        """Return the batches of the drain.

        The last input closes windows; the batch after it has the new watermark.
        """
        return 2 if own.query in AWAITING_TIME else 1

    def filling(self, own: NexmarkParameters, common: Common) -> PreloadGoal | None:
        if own.source == "kafka":
            return None
        return PreloadGoal(
            offsets={"0": preload_batches(own) * batch_events(own) + 1},
            runs=2 if own.preload_events else 1,
            what=f"{own.preload_events} events of preload_events" if own.preload_events else "the first batch",
            events=own.preload_events,
            typical_s=own.preload_events / TYPICAL_RPS,
            longest_s=own.preload_events / SLOWEST_QUERY_RPS,
        )

    def tuples(self, own: NexmarkParameters) -> dict[str, Any]:
        return {"tuples": "nexmark", "query": own.query}

    def program_configuration(self, prepared: Prepared, own: NexmarkParameters, common: Common) -> dict[str, Any]:
        passed = {"query": own.query, "source": own.source, "watermark_s": own.watermark_s}
        if own.source == "kafka":
            return passed
        return {
            **passed,
            "rules": {**rules(own, common, prepared.repetition), "curve": pieces(common)},
            "reads": reads(own.query),
            "batch_events": batch_events(own),
            "preload_batches": preload_batches(own),
            "executors": common.executors,
            "slots": common.executors * common.executor_cores,
        }

    def title(self, config: Mapping[str, Any]) -> str | None:
        return f"query {config.get('query', '?')}"


def query_file(name: str) -> bool:
    """Return whether the query exists, as SQL or as a module."""
    folder = ROOT / "spark_jobs" / "nexmark" / "queries"
    return any((folder / f"{name}{suffix}").is_file() for suffix in (".sql", ".py"))


WORKLOADS = (Nexmark(),)
