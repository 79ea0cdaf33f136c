"""Last steps of one experiment: tables, record, teardown.

The judge's libraries are imported in its step, since other steps run during a measured window.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline.engines.runtime import BatchJob
from faultline.installation.kafka import delete_topics
from faultline.lifecycle.collect import collect_raw_data, require_complete
from faultline.lifecycle.context import RunContext
from faultline.lifecycle.teardown import close_attempt
from faultline.system.errors import ConfigError
from faultline.system.process_ledger import end_processes, processes_with_mark
from faultline.system.process_tags import RUN_MARK
from faultline.system.settings import Settings

if TYPE_CHECKING:
    from faultline.records.record import Record


def harvest(run: RunContext) -> None:
    """Collect raw files, then read both topics with Spark or the engine's own harvester.

    Raises ConfigError for an attempt with a plan before schema 3. Raises InfrastructureError if the topics are
    incomplete or the job fails.
    """
    attempt, plan = run.attempt, run.plan
    # Its definition of a tuple is only in the user's file, which may have changed; keep its tables.
    if not plan.tuples:
        raise ConfigError(
            f"{attempt.id}: got an attempt of an earlier version; expected one whose plan says how to harvest; "
            "fix: clear only the step judge, which reads the existing tables, or the whole run"
        )
    configuration = collect_raw_data(run)
    require_complete(plan)
    if engine_harvester := run.engine.harvester(run):
        engine_harvester(configuration)
        return
    # End the job of a killed earlier try, which would write to the same folder.
    end_processes(processes_with_mark(RUN_MARK, attempt.id))
    job = BatchJob(
        program="harvest",
        arguments=("--config", str(configuration)),
        name=f"harvest {attempt.id}",
        run=run,
    )
    run.hooks.batch(job)


def aggregation(settings: Settings) -> BatchJob:
    """Return the job that rebuilds the summary tables over all records."""
    from faultline.records.renames import CODES, KEYS, STATUSES

    arguments = (
        *("--records", str(settings.records)),
        *("--attempts", str(settings.attempts)),
        *("--target", str(settings.results / "summary")),
        *("--renames", json.dumps({"keys": KEYS, "statuses": STATUSES, "codes": CODES})),
    )
    return BatchJob("aggregate", arguments, "aggregate")


def judge(run: RunContext) -> Record:
    """Judge the raw files and store the record."""
    from faultline.records.judge.rejudge import judge_attempt

    return judge_attempt(run.attempt, run.settings)


def teardown(run: RunContext) -> dict[str, Any]:
    """End the attempt's processes, delete its topics and close it; see `close_attempt`."""
    return close_attempt(run, lambda topics: delete_topics(run.hooks.kafka_admin(), topics))
