"""`RunExperiment`: gets one valid record for one cell, or says which kind of failure kept it from that."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.providers.standard.triggers.external_task import DagStateTrigger
from airflow.sdk import DagRunState, ExceptionRetryPolicy, RetryAction, RetryRule

from faultline.experiment.cell import EXPERIMENT
from faultline.experiment.matrices import MOST_MEASUREMENTS
from faultline.system.errors import ConfigError, InfrastructureError, InvalidMeasurement
from faultline.system.settings import load_settings

if TYPE_CHECKING:
    from faultline.experiment.cell import Cell
    from faultline.records.record import Record

# Runs of it that go on together: one is measured, and the next one waits for its turn or starts; the machine's lock
# sees to it that two never measure.
AT_ONCE = 2
# Two runs go on together, so the next one is ready when an end is noticed late; each look takes 10 ms of CPU time.
POLL_S = 5
# Tries of the task; measurements are bounded by `max_measurements`, this bounds the infrastructure's failures.
RETRIES = 9
# Failures of a night's baseline, none of which got it to run, after which the night goes on without it.
MOST_FAILED = 3
# For tasks that give the same when they are done again: one that died is tried again.
AGAIN: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=5)}
UNFINISHED = frozenset({"queued", "running"})
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

    If the run's `keep_unsound` is set, a cell whose measurements were all unsound is skipped, which fails no run: its
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
            allowed_states=[DagRunState.SUCCESS, DagRunState.FAILED],
            failed_states=[],
            deferrable=True,
            openlineage_inject_parent_info=False,
            **arguments,
        )
        self.max_measurements = max_measurements
        self.cell = cell

    def execute(self, context: Any) -> None:
        from airflow.sdk.exceptions import AirflowSkipException

        if self._done(context):
            self.log.info("The cell is measured already.")
            return
        self._note_known(context)
        if self._child_state(context) in UNFINISHED:
            self.defer(
                trigger=DagStateTrigger(
                    dag_id=EXPERIMENT,
                    states=[DagRunState.SUCCESS, DagRunState.FAILED],
                    run_ids=[str(self.trigger_run_id)],
                    poll_interval=POLL_S,
                ),
                method_name="execute_complete",
            )
        if why := self._settled(context):
            raise AirflowSkipException(why)
        super().execute(context)

    def execute_complete(self, context: Any, event: Any) -> None:
        """Reads the record of the run that has ended. Raises the kind of error that its outcome means."""
        from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

        from faultline.records.judge.verdict import error_of

        if self._done(context):
            return
        record = self._newest(context)
        if record is None:
            raise InfrastructureError(f"{self._run_id(event)}: ended without a record; see its first failed task")
        error = error_of(record)
        assert error is not None, "a valid record of this sweep is what _done looks for"
        if isinstance(error, InvalidMeasurement) and self._measured(context) >= self.max_measurements:
            if context["params"].get("keep_unsound"):
                raise AirflowSkipException(f"kept as unsound after {self.max_measurements} measurements: {error}")
            raise AirflowFailException(f"given up after {self.max_measurements} measurements: {error}")
        raise error

    def _child_state(self, context: Any) -> str | None:
        """State of the child's run, or None when there is none yet."""
        known = context["ti"].get_dr_count(dag_id=EXPERIMENT, run_ids=[str(self.trigger_run_id)])
        if not known:
            return None
        return state_of(context, EXPERIMENT, str(self.trigger_run_id))

    def _done(self, context: Any) -> bool:
        """Whether a valid record ends it: any one of the cell, or with `only_missing` off one of this sweep.

        The latter is for retries: the first try may have ended well unseen.
        """
        from faultline.records.store import Store

        if any(record.sound for record in self._own()):
            return True
        only_missing = bool(context["params"].get("only_missing", True))
        return only_missing and Store(load_settings().results).sound(self._cell()) is not None

    def _settled(self, context: Any) -> str | None:
        """Why the cell need not be measured any more, where the sweep is to decide something."""
        from faultline.records.index import Index
        from faultline.records.manifest import Manifests

        settings, cell = load_settings(), self._cell()
        plan = Manifests(settings.results).read(str((self.conf or {}).get("sweep_id")))
        if plan is not None and plan.baseline is not None:
            return self._baseline_fails(plan.baseline.series, context)
        if plan is None or plan.decide is None:
            return None
        begun, hours = context["dag_run"].start_date, plan.decide.hours
        if hours is not None and begun and datetime.now(UTC) - begun > timedelta(hours=hours):
            return f"the budget of {hours:g} hours is spent"
        from faultline.comparison.decisions import settled_in

        index = Index(settings.results, settings.home)
        index.refresh()
        entries = index.of_configurations(one.config_id for one in plan.cells)
        settled = cell.config_id in settled_in(plan, entries)
        return "all of its comparisons are decided, or the experiments are spent" if settled else None

    def _baseline_fails(self, series: str, context: Any) -> str | None:
        """Why a baseline need not be tried any more: since the run began, or was cleared, it failed again and again,
        and never ran."""
        from faultline.records.store import Store

        if (self.conf or {}).get("series") != series:
            return None
        sweep = Store(load_settings().results).query(sweep=str((self.conf or {}).get("sweep_id")))
        own = _since([record for record in sweep if record.series == series], context)
        if len(own) < MOST_FAILED or any(record.status != "failed" for record in own):
            return None
        return f"the baseline failed {len(own)} times and never ran: {'; '.join(own[-1].reasons) or 'failed'}"

    def _cell(self) -> Cell:
        from faultline.experiment.cell import Cell
        from faultline.experiment.config import Configuration, parse_configuration

        conf = dict(self.conf or {})
        config = parse_configuration({key: conf[key] for key in Configuration.model_fields if key in conf})
        return Cell(config.config_id, int(conf["repetition"]), str(conf["series"]))

    def _own(self) -> list[Record]:
        """Records of the cell that this sweep has measured."""
        from faultline.records.store import Store

        cell, sweep = self._cell(), (self.conf or {}).get("sweep_id")
        return [record for record in Store(load_settings().results).of(cell) if record.sweep_id == sweep]

    def _note_known(self, context: Any) -> None:
        """So that what this try measures is told from that by no clock, which may be set meanwhile."""
        context["ti"].xcom_push(key=KNOWN, value=[record.attempt for record in self._own()])

    def _newest(self, context: Any) -> Record | None:
        """What this try measured."""
        ti = context["ti"]
        known = ti.xcom_pull(key=KNOWN, map_indexes=ti.map_index if ti.map_index >= 0 else None) or []
        new = [record for record in self._own() if record.attempt not in known]
        return new[-1] if new else None

    def _measured(self, context: Any) -> int:
        """How often this sweep measured the cell in vain since its run began, or was cleared: a try measures once, and
        clearing adds to the tries that there may be."""
        ti = context["ti"]
        tries = ti.try_number - (ti.max_tries - (self.retries or 0))
        return sum(record.status == "unsound" for record in self._own()[-max(1, tries) :])

    def _run_id(self, event: Any) -> str:
        return str(event[1]["run_ids"][0])


def _since(records: Sequence[Record], context: Any) -> list[Record]:
    """Those of attempts since the run began, or was cleared: what was given up before is not counted again."""
    begun = context["dag_run"].start_date
    # An attempt's id begins with its time in UTC, to the second.
    first = f"{begun.astimezone(UTC):%Y%m%dT%H%M%SZ}" if begun else ""
    return [record for record in records if record.attempt >= first]
