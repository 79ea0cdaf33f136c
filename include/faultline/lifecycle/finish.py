"""The last steps of one experiment: its tables, its record, and the end of all that it started.

The judge's libraries are loaded where it judges: other steps run beside a window that is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.engines.runtime import BatchJob
from faultline.installation.kafka import delete_topics
from faultline.lifecycle.collect import collect_raw_data, is_large, require_complete, sent_records
from faultline.lifecycle.context import RunContext
from faultline.lifecycle.teardown import close_attempt
from faultline.system.errors import ConfigError
from faultline.system.process_ledger import end_processes, processes_with_mark
from faultline.system.process_tags import RUN_MARK
from faultline.system.settings import Settings

if TYPE_CHECKING:
    from faultline.records.record import Record


def harvest(run: RunContext) -> None:
    """Gathers what the run left on disk; then Spark reads both topics, unless the engine has a way of its own.

    Raises ConfigError for an attempt from before schema 3 of plans, InfrastructureError when the topics are not whole
    any more, or the job fails.
    """
    attempt, plan = run.attempt, run.plan
    # What was a tuple then, only the user's file could tell, which may have changed; its tables stay as they are.
    if not plan.tuples:
        raise ConfigError(
            f"{attempt.id}: got an attempt of an earlier version; expected one whose plan says how to harvest; "
            "fix: clear the step judge alone, which reads the tables that are there, or the whole run"
        )
    configuration = collect_raw_data(run)
    require_complete(plan)
    if own := run.engine.harvester(run):
        own(configuration)
        return
    # The job of an earlier try whose task was killed would write into the same folder.
    end_processes(processes_with_mark(RUN_MARK, attempt.id))
    job = BatchJob(
        program="harvest",
        arguments=("--config", str(configuration)),
        name=f"harvest {attempt.id}",
        large=is_large(sent_records(attempt, plan)),
        run=run,
    )
    run.hooks.batch(job)


def aggregation(settings: Settings) -> BatchJob:
    """The job that rebuilds the summary tables over all records."""
    from faultline.records.index_entry import is_large as many

    arguments = (
        *("--records", str(settings.records)),
        *("--attempts", str(settings.attempts)),
        *("--target", str(settings.results / "summary")),
    )
    return BatchJob("aggregate", arguments, "aggregate", large=many(settings.attempts))


def judge(run: RunContext) -> Record:
    """Judges the raw files, and stores the record."""
    from faultline.records.judge.rejudge import judge_attempt

    return judge_attempt(run.attempt, run.settings)


def teardown(run: RunContext) -> dict[str, Any]:
    """Ends what the attempt's ledger names, deletes its topics, and closes the attempt; see `close_attempt`."""
    return close_attempt(run, lambda topics: delete_topics(run.hooks.kafka_admin(), topics))
