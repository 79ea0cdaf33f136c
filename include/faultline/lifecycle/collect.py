"""The step `harvest`, as far as it needs no Spark: gathers what the run left on disk, and says what is to be read."""

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
from faultline.experiment.run import Run
from faultline.lifecycle.attempt_processes import last_line
from faultline.system.errors import InfrastructureError
from faultline.system.journal import find_last, read_finished, read_journal, write_lines
from faultline.system.kafka import KafkaEndOffsets, kafka_options
from faultline.system.settings import Settings

# Above it, a harvest gains more from Spark's optimisations than they cost.
LARGE_RECORDS = 500_000
# Of the harvest's configuration: by how many ms the clock that stamped the outputs was ahead.
CLOCK_AHEAD = "emitted_ahead_ms"
# For the broker's answer where a topic begins.
OFFSETS_TIMEOUT_S = 30.0


def collect_raw_data(run: Run) -> Path:
    """Has the engine gather its own, copies the starts of services; returns the harvest's configuration.

    Repeating it gives the same: it only reads what the run left.
    """
    attempt, plan = run.attempt, run.plan
    engine_of_plan(plan).collect(run)
    copy_service_starts(attempt, run.settings)
    fetch_recordings(run)
    configuration = attempt.folder / "harvest_config.json"
    write_json(
        configuration,
        {
            "bootstrap": plan.endpoints.kafka,
            "kafka_options": kafka_options(run.there),
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
    """Offsets of the input that were not committed; 0 where the generator did not tell how many there are."""
    done = last_line(attempt.generator_journal, event="done")
    return uncommitted_count(read_batches(attempt.folder)[2], done["end_offsets"]) if done else 0


def require_complete(plan: AttemptPlan) -> None:
    """Refuses topics of a paced attempt that do not begin at their first record any more.

    Raises InfrastructureError naming topic, partition and offset, or when the broker does not answer.
    """
    for topic in plan.topics.values() if plan.paced else ():
        begin = KafkaEndOffsets(plan.endpoints.kafka, topic.name).earliest(OFFSETS_TIMEOUT_S)
        for partition, offset in begin.items():
            if offset:
                raise InfrastructureError(
                    f"topic {topic.name}: partition {partition} begins at offset {offset}, its first records were "
                    "deleted before they were read; measure again"
                )


def _job_fields(attempt: Attempt, tuples: Mapping[str, Any]) -> dict[str, Any]:
    """Of a job of the user's: its file as it was when it ran, and what else it was told then."""
    if "job" not in tuples:
        return {}
    file = tuples["job"] and str(attempt.job / tuples["job"])
    return {"job": file, "attempt": attempt.id, "folder": str(attempt.sink)}


def sent_records(attempt: Attempt, plan: AttemptPlan) -> int:
    """Records of the schedule: those that the generator says it sent, else those of the whole schedule."""
    from generators.spec import GeneratorSpec

    done = find_last(read_journal(attempt.generator_journal), event="done")
    return GeneratorSpec.model_validate(plan.generator).total if done is None else int(done["records"])


def is_large(records: float) -> bool:
    """Whether a harvest of so many records is to have Spark's optimisations."""
    return records > LARGE_RECORDS


def fetch_recordings(run: Run) -> None:
    """Copies what other hosts recorded. Raises InfrastructureError naming the host that is away: clear the task once it
    is back."""
    if run.plan.endpoints.hosts:
        from faultline.lifecycle.hosts.recordings import fetch_journals  # the SSH library takes its time

        fetch_journals(run)


def broker_ahead_ms(attempt: Attempt) -> int:
    """By how many ms, in whole ones, the clock of the broker's host was ahead of this one's, by which the generator
    sends: outputs that it stamped are moved by so many. 0 where the broker runs here, or was never asked."""
    from faultline.records.judge.samples import clocks_of  # tables take their time to be imported

    clock = clocks_of(read_finished(attempt.recorder_journal)).get(KAFKA_HOST)
    return 0 if clock is None else round(clock.ahead_s * 1000)


def remove_recordings(run: Run) -> list[str]:
    """Removes them there; a line for each host that is away, where they go when it starts again."""
    if not run.plan.endpoints.hosts:
        return []
    from faultline.lifecycle.hosts.recordings import remove_journals

    return remove_journals(run)


def copy_service_starts(attempt: Attempt, settings: Settings) -> None:
    """Copies the starts of services since it was the attempt's turn: what a fault ended comes back there."""
    since = attempt.begun_at_ns()
    lines = [line for line in read_journal(settings.services_journal) if line["wall_ns"] >= since]
    write_lines(attempt.services_journal, lines)


def remove_working_data(run: Run) -> None:
    """Removes what the run made outside its raw files."""
    engine_of_plan(run.plan).discard(run)
    shutil.rmtree(run.attempt.scratch, ignore_errors=True)
