"""First part of the step `harvest`, without Spark: collect raw files and write the harvest's configuration."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fault.identity import KAFKA_HOST
from faultline.engines.batches import BATCHES_FILE, read_batches
from faultline.engines.protocol import uncommitted_count
from faultline.engines.registry import engine_of_plan
from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.attempt_plan import AttemptPlan
from faultline.experiment.common_parameters import EXACTLY_ONCE
from faultline.experiment.run import Run
from faultline.lifecycle.attempt_processes import last_line
from faultline.system.errors import InfrastructureError
from faultline.system.journal import read_finished, read_journal, write_lines
from faultline.system.kafka import KafkaEndOffsets, kafka_options
from faultline.system.settings import Settings

# Key in the harvest's configuration: milliseconds by which the clock that stamped the outputs was ahead.
CLOCK_AHEAD = "emitted_ahead_ms"
# Timeout of the broker's reply with a topic's first offsets.
OFFSETS_TIMEOUT_S = 30.0


def collect_raw_data(run: Run) -> Path:
    """Collect engine files and service starts; return the path of the harvest's configuration.

    Idempotent: it only reads what the run left.
    """
    attempt, plan = run.attempt, run.plan
    engine_of_plan(plan).collect(run)
    copy_service_starts(attempt, run.settings)
    fetch_recordings(run)
    # Outputs of open and aborted transactions do not count.
    isolation = {"kafka.isolation.level": "read_committed"} if run.config.delivery_guarantee == EXACTLY_ONCE else {}
    configuration = attempt.folder / "harvest_config.json"
    write_json(
        configuration,
        {
            "bootstrap": plan.endpoints.kafka,
            "kafka_options": {**kafka_options(run.there), **isolation},
            "input_topic": plan.topics["input"].name,
            "output_topic": plan.topics["output"].name,
            "batches": str(attempt.folder / BATCHES_FILE),
            "target": str(attempt.harvest),
            "undrained": _undrained_count(attempt),
            **({CLOCK_AHEAD: broker_ahead_ms(attempt)} if plan.stamped_by_broker else {}),
            **plan.tuples,
            **_job_fields(attempt, plan.tuples),
        },
    )
    return configuration


def _undrained_count(attempt: Attempt) -> int:
    """Return the number of uncommitted input offsets; 0 if the generator did not report its end offsets."""
    done = last_line(attempt.generator_journal, event="done")
    return uncommitted_count(read_batches(attempt.folder)[2], done["end_offsets"]) if done else 0


def require_complete(plan: AttemptPlan) -> None:
    """Raise InfrastructureError for topics that lost their first records, if the attempt has a send schedule.

    The error names topic, partition and offset. Also raised if the broker does not answer.
    """
    for topic in plan.topics.values() if plan.paced else ():
        begin = KafkaEndOffsets(plan.endpoints.kafka, topic.name).earliest(OFFSETS_TIMEOUT_S)
        for partition, offset in begin.items():
            if offset:
                raise InfrastructureError(
                    f"topic {topic.name}: partition {partition} starts at offset {offset}; expected 0, records "
                    "were deleted before the harvest; fix: measure again"
                )


def _job_fields(attempt: Attempt, tuples: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a user job: the copy of its file, and the arguments that it got."""
    if "job" not in tuples:
        return {}
    file = tuples["job"] and str(attempt.job / tuples["job"])
    return {"job": file, "attempt": attempt.id, "folder": str(attempt.sink)}


def fetch_recordings(run: Run) -> None:
    """Copy the recordings of other hosts.

    Raises InfrastructureError naming an unreachable host; clear the task once it is reachable.
    """
    if run.plan.endpoints.hosts:
        from faultline.lifecycle.hosts.recordings import fetch_journals  # a slow import

        fetch_journals(run)


def broker_ahead_ms(attempt: Attempt) -> int:
    """Return how far the clock of the broker's host is ahead of the generator's, in whole ms.

    Outputs stamped by the broker are shifted by it. 0 if the broker runs here or its clock was never measured.
    """
    from faultline.records.judge.samples import clocks_of  # a slow import

    clock = clocks_of(read_finished(attempt.recorder_journal)).get(KAFKA_HOST)
    return 0 if clock is None else round(clock.ahead_s * 1000)


def remove_recordings(run: Run) -> list[str]:
    """Remove the recordings from other hosts; return a line for each unreachable host.

    An unreachable host removes its recordings at its next start.
    """
    if not run.plan.endpoints.hosts:
        return []
    from faultline.lifecycle.hosts.recordings import remove_journals

    return remove_journals(run)


def copy_service_starts(attempt: Attempt, settings: Settings) -> None:
    """Copy the service starts since the attempt got the machine; they show restarts after faults."""
    since = attempt.begun_at_ns()
    lines = [line for line in read_journal(settings.services_journal) if line["wall_ns"] >= since]
    write_lines(attempt.services_journal, lines)


def remove_working_data(run: Run) -> None:
    """Remove everything the run made except its raw files."""
    engine_of_plan(run.plan).discard(run)
    shutil.rmtree(run.attempt.scratch, ignore_errors=True)
