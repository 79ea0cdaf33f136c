"""`RunExperiment`: the operator that gets one usable record per cell, as `faultline.orchestration.cells` decides."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.providers.standard.triggers.external_task import DagStateTrigger
from airflow.sdk import DagRunState, ExceptionRetryPolicy, RetryAction, RetryRule

from faultline.experiment.cell import EXPERIMENT, RETRY_DELAY_S, TRIED_AGAIN
from faultline.experiment.matrices import MOST_MEASUREMENTS
from faultline.system.errors import ConfigError, InfrastructureError, InvalidMeasurement
from faultline.system.settings import load_settings

if TYPE_CHECKING:
    from faultline.orchestration.cells import RunningCell

# Two runs at a time: one is measured while the next one starts or waits; the machine lock keeps windows apart.
MAX_ACTIVE_RUNS = 2
# Each poll takes 10 ms of CPU. With two concurrent runs, noticing an end late costs no time.
POLL_S = 5
# `max_measurements` bounds measurements; this bounds infrastructure failures.
CELL_RETRIES = 9
# Retry arguments of idempotent tasks.
RETRY_ARGUMENTS: dict[str, Any] = {"retries": TRIED_AGAIN, "retry_delay": timedelta(seconds=RETRY_DELAY_S)}
FINAL_STATES = [DagRunState.SUCCESS, DagRunState.FAILED]
# XCom key of the cell's attempts before this try.
KNOWN_ATTEMPTS_KEY = "known"


def retry_policy() -> ExceptionRetryPolicy:
    """Return the retry policy: fail on invalid input, retry after infrastructure errors and invalid measurements."""
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(ConfigError, RetryAction.FAIL),
            RetryRule([InfrastructureError, InvalidMeasurement], RetryAction.RETRY),
        ]
    )


def run_state(context: Any, dag_id: str, run_id: str) -> str:
    """Return the state of another run: queued, running, success or failed."""
    state = context["ti"].get_dagrun_state(dag_id=dag_id, run_id=run_id)
    # The SDK returns an enumeration whose text is its name ("DagRunState.FAILED"), not the annotated string.
    return str(getattr(state, "value", state))


class RunExperiment(TriggerDagRunOperator):
    """Operator that runs the DAG `experiment` for one cell and reads its record afterwards.

    It first looks for a usable record, then for an active child run of `experiment`, which it awaits, and only then
    triggers one. A retry is a new attempt. When it is the child's turn, the child looks for a record again, because
    another sweep may have measured the cell.

    In a sequential sweep a decided cell is skipped, as are all cells once the hours are used up. At that moment the
    previous cell is still being measured and may be decisive, so one cell more than needed may be measured.

    With `keep_invalid`, a cell with only invalid measurements is skipped instead of failing the run; its records stay.

    `cell`: the name that Airflow shows for a started task in place of its map index.
    """

    def __init__(self, *, max_measurements: int = MOST_MEASUREMENTS, cell: str = "", **arguments: Any) -> None:
        super().__init__(
            trigger_dag_id=EXPERIMENT,
            # Without a logical date the wait finds the run by its id alone, even after a reset.
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
        # The difference to this list identifies the attempts of this try; times would not, as a clock may be set back.
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
        """Read the record of the run that ended; raises an error unless it ends the cell."""
        from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

        from faultline.orchestration import cells

        ti = context["ti"]
        known = ti.xcom_pull(key=KNOWN_ATTEMPTS_KEY, map_indexes=ti.map_index if ti.map_index >= 0 else None) or []
        # Each try measures once; clearing increases `max_tries`.
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
        """Return the state of the child run; None if there is none."""
        known = context["ti"].get_dr_count(dag_id=EXPERIMENT, run_ids=[str(self.trigger_run_id)])
        return run_state(context, EXPERIMENT, str(self.trigger_run_id)) if known else None
