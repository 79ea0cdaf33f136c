"""`RunExperiment`: gets one valid record for one cell; `faultline.orchestration.cells` decides what that takes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.providers.standard.triggers.external_task import DagStateTrigger
from airflow.sdk import DagRunState, ExceptionRetryPolicy, RetryAction, RetryRule

from faultline.experiment.cell import AGAIN_AFTER_S, EXPERIMENT, TRIED_AGAIN
from faultline.experiment.matrices import MOST_MEASUREMENTS
from faultline.system.errors import ConfigError, InfrastructureError, InvalidMeasurement
from faultline.system.settings import load_settings

if TYPE_CHECKING:
    from faultline.orchestration.cells import SweptCell

# Runs of it that go on together: one is measured, and the next one waits for its turn or starts; the machine's lock
# sees to it that two never measure.
AT_ONCE = 2
# Two runs go on together, so the next one is ready when an end is noticed late; each look takes 10 ms of CPU time.
POLL_S = 5
# Tries of the task; measurements are bounded by `max_measurements`, this bounds the infrastructure's failures.
RETRIES = 9
# For tasks that give the same when they are done again: one that died is tried again.
AGAIN: dict[str, Any] = {"retries": TRIED_AGAIN, "retry_delay": timedelta(seconds=AGAIN_AFTER_S)}
ENDED = [DagRunState.SUCCESS, DagRunState.FAILED]
# Under which a try leaves the attempts that its sweep had measured of the cell before.
KNOWN = "known"


def retry_policy() -> ExceptionRetryPolicy:
    """Wrong input fails at once; what broke or was measured badly is tried again."""
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(ConfigError, RetryAction.FAIL),
            RetryRule([InfrastructureError, InvalidMeasurement], RetryAction.RETRY),
        ]
    )


def state_of(context: Any, dag_id: str, run_id: str) -> str:
    """State of another run, as seen from a task: queued, running, success or failed."""
    state = context["ti"].get_dagrun_state(dag_id=dag_id, run_id=run_id)
    # The SDK answers with an enumeration whose text is its name ("DagRunState.FAILED"), whatever its signature says.
    return str(getattr(state, "value", state))


class RunExperiment(TriggerDagRunOperator):
    """Runs the DAG `experiment` for one cell and reads the cell's record when it ended.

    It asks the store first (a valid record ends it), then the child's state (one that is queued or
    running is waited for, not reset), and only then triggers. A retry is a whole new attempt. The child asks the store
    once more when its turn comes, since another sweep may have measured the cell while it was queued.

    Where the sweep is to decide something, a cell that nothing is open about is skipped, and so is each one when the
    hours are spent. The cell before is then still being measured: it may be the one that decides, so that one more
    is measured than need be.

    If the run's `keep_invalid` is set, a cell whose measurements were all invalid is skipped, which fails no run: its
    records stay, under their label.

    `cell` is its name in words, which Airflow shows once the task has begun, in place of its number.
    """

    def __init__(self, *, max_measurements: int = MOST_MEASUREMENTS, cell: str = "", **arguments: Any) -> None:
        super().__init__(
            trigger_dag_id=EXPERIMENT,
            # Without a logical date: the wait looks for the run by its id alone, also after a reset.
            logical_date=None,
            reset_dag_run=True,
            wait_for_completion=True,
            poke_interval=POLL_S,
            allowed_states=ENDED,
            failed_states=[],
            deferrable=True,
            openlineage_inject_parent_info=False,
            **arguments,
        )
        self.max_measurements = max_measurements
        self.cell = cell

    def execute(self, context: Any) -> None:
        from airflow.sdk.exceptions import AirflowSkipException

        from faultline.orchestration import cells

        ti, swept = context["ti"], self._swept(context)
        verdict = cells.before(swept, lambda: self._child_state(context))
        if verdict.do == "done":
            self.log.info(verdict.why)
            return
        # So that what this try measures is told from that by no clock, which may be set meanwhile.
        ti.xcom_push(key=KNOWN, value=[record.attempt for record in swept.measured()])
        if verdict.do == "skip":
            raise AirflowSkipException(verdict.why)
        if verdict.do == "wait":
            waits = DagStateTrigger(
                dag_id=EXPERIMENT, states=ENDED, run_ids=[str(self.trigger_run_id)], poll_interval=POLL_S
            )
            self.defer(trigger=waits, method_name="execute_complete")
        super().execute(context)

    def execute_complete(self, context: Any, event: Any) -> None:
        """Reads the record of the run that has ended. Raises the kind of error that its outcome means."""
        from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

        from faultline.orchestration import cells

        ti = context["ti"]
        known = ti.xcom_pull(key=KNOWN, map_indexes=ti.map_index if ti.map_index >= 0 else None) or []
        # A try measures once, and clearing adds to the tries that there may be.
        tries = ti.try_number - (ti.max_tries - (self.retries or 0))
        verdict = cells.after(self._swept(context), known, tries, str(event[1]["run_ids"][0]))
        if verdict.do == "skip":
            raise AirflowSkipException(verdict.why)
        if verdict.do == "give_up":
            raise AirflowFailException(verdict.why)

    def _swept(self, context: Any) -> SweptCell:
        from faultline.orchestration.cells import SweptCell

        begun, conf = context["dag_run"].start_date, dict(self.conf or {})
        return SweptCell(load_settings(), conf, context["params"], begun, self.max_measurements)

    def _child_state(self, context: Any) -> str | None:
        """State of the child's run, or None when there is none yet."""
        known = context["ti"].get_dr_count(dag_id=EXPERIMENT, run_ids=[str(self.trigger_run_id)])
        return state_of(context, EXPERIMENT, str(self.trigger_run_id)) if known else None
