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
    from faultline.orchestration.cells import RunningCell

# Runs of it that go on together: one is measured, and the next one waits for its turn or starts; the machine's lock
# sees to it that two never measure.
MAX_ACTIVE_RUNS = 2
# Two runs go on together, so the next one is ready when an end is noticed late; each look takes 10 ms of CPU time.
POLL_S = 5
# Tries of the task; measurements are bounded by `max_measurements`, this bounds the infrastructure's failures.
CELL_RETRIES = 9
# For tasks that give the same when they are done again: one that died is tried again.
RETRY_ARGUMENTS: dict[str, Any] = {"retries": TRIED_AGAIN, "retry_delay": timedelta(seconds=AGAIN_AFTER_S)}
FINAL_STATES = [DagRunState.SUCCESS, DagRunState.FAILED]
# Under which a try leaves the attempts that its sweep had measured of the cell before.
KNOWN_ATTEMPTS_KEY = "known"


def retry_policy() -> ExceptionRetryPolicy:
    """Wrong input fails at once; what broke or was measured badly is tried again."""
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(ConfigError, RetryAction.FAIL),
            RetryRule([InfrastructureError, InvalidMeasurement], RetryAction.RETRY),
        ]
    )


def run_state(context: Any, dag_id: str, run_id: str) -> str:
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
            allowed_states=FINAL_STATES,
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

        ti, cell = context["ti"], self._sweep_cell(context)
        decision = cells.decide_before_run(cell, lambda: self._child_state(context))
        if decision.action == "done":
            self.log.info(decision.reason)
            return
        # So that what this try measures is told from that by no clock, which may be set meanwhile.
        ti.xcom_push(key=KNOWN_ATTEMPTS_KEY, value=[record.attempt for record in cell.own_records()])
        if decision.action == "skip":
            raise AirflowSkipException(decision.reason)
        if decision.action == "wait":
            waits = DagStateTrigger(
                dag_id=EXPERIMENT, states=FINAL_STATES, run_ids=[str(self.trigger_run_id)], poll_interval=POLL_S
            )
            self.defer(trigger=waits, method_name="execute_complete")
        super().execute(context)

    def execute_complete(self, context: Any, event: Any) -> None:
        """Reads the record of the run that has ended. Raises the kind of error that its outcome means."""
        from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

        from faultline.orchestration import cells

        ti = context["ti"]
        known = ti.xcom_pull(key=KNOWN_ATTEMPTS_KEY, map_indexes=ti.map_index if ti.map_index >= 0 else None) or []
        # A try measures once, and clearing adds to the tries that there may be.
        tries = ti.try_number - (ti.max_tries - (self.retries or 0))
        decision = cells.decide_after_run(self._sweep_cell(context), known, tries, str(event[1]["run_ids"][0]))
        if decision.action == "skip":
            raise AirflowSkipException(decision.reason)
        if decision.action == "give_up":
            raise AirflowFailException(decision.reason)

    def _sweep_cell(self, context: Any) -> RunningCell:
        from faultline.orchestration.cells import RunningCell

        begun, conf = context["dag_run"].start_date, dict(self.conf or {})
        return RunningCell(load_settings(), conf, context["params"], begun, self.max_measurements)

    def _child_state(self, context: Any) -> str | None:
        """State of the child's run, or None when there is none yet."""
        known = context["ti"].get_dr_count(dag_id=EXPERIMENT, run_ids=[str(self.trigger_run_id)])
        return run_state(context, EXPERIMENT, str(self.trigger_run_id)) if known else None
