"""Faultline's DAGs in an external Airflow: each task runs `./faultline step` on this host, and waits for its end.

`./faultline airflow install` writes it into the DAG folder, next to faultline.json; `./faultline airflow uninstall`
removes both. It needs only Airflow. Change neither file: the next `airflow install` overwrites both.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.providers.standard.triggers.external_task import DagStateTrigger
from airflow.sdk import DAG, BaseHook, BaseOperator, DagRunState, Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

INSTALLATION_FILE = Path(__file__).with_name("faultline.json")
# How often a task that was killed finds its work again; what failed once for all is not tried again.
RETRIES = 3
RETRY_DELAY = timedelta(seconds=5)
# What `./faultline step` gets of this environment, which is another program's.
INHERITED_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_RUNTIME_DIR")
ACTIVE_STATES = ("queued", "running")
FINAL_STATES = [DagRunState.SUCCESS, DagRunState.FAILED]


class TaskIncomplete(Exception):
    """The work did not come to its end; Airflow tries again."""


def installation() -> dict[str, Any]:
    """What `install` wrote down: prefix, queue, pool, where Faultline is, Connections and DAGs."""
    return dict(json.loads(INSTALLATION_FILE.read_text()))


def run_step(context: Any, name: str, attempt: str | None = None, **request: Any) -> Any:
    """Has a step, or another piece of work, done; prints what it prints. Returns its value.

    Raises AirflowSkipException and AirflowFailException as the work did, and NotDone for what may be tried again.
    """
    here, end, last = installation(), None, "no message"
    _require_host(here)
    environment = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    environment |= {"FAULTLINE_HOME": here["home"], "FAULTLINE_RESULTS": here["results"]}
    with subprocess.Popen(
        [here["command"], "step", name, *([attempt] if attempt else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=here["home"],
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            # Connections among it: command lines and environments show what they hold.
            with process.stdin as stream:
                stream.write(json.dumps({**_run_information(context, here), **request}, default=str))
            for line in process.stdout:
                word = _message(line)
                if "outcome" in word:
                    end = word
                elif "wait" not in word:
                    last = str(word.get("log", line)).rstrip()
                    print(last)
                elif is_parent_stopped(context, here["prefix"]):
                    Path(word["wait"]).touch()
        finally:
            # The work itself goes on, and the next try finds it.
            process.terminate()
    if end is None:
        raise TaskIncomplete(f"./faultline step {name}: ended with status {process.returncode}: {last}")
    return _result(context, end)


def _message(line: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError):
        return {"log": line.rstrip()}


def _require_host(here: dict[str, Any]) -> None:
    home, host = Path(here["home"]), socket.gethostname()
    if not home.is_dir():
        raise AirflowFailException(
            f"{host}: got a task of Faultline, whose {home} is not here; let only a worker on {here['host']} take "
            f"tasks of the queue {here['queue']}"
        )
    if (owner := home.stat().st_uid) != os.getuid():
        raise AirflowFailException(f"{home}: is of user {owner}, and {os.getuid()} runs this task; run it as {owner}")


def is_run_active(context: Any, dag: str, run_id: str) -> bool:
    """Whether a run is queued or running in this Airflow."""
    ti = context["ti"]
    return bool(ti.get_dr_count(dag_id=dag, run_ids=[run_id], states=list(ACTIVE_STATES)))


def is_parent_stopped(context: Any, prefix: str) -> bool:
    """Whether the sweep that asked for this experiment is over or gone: it waits while it wants it."""
    matrix, parent = (context["params"].get(one) for one in ("matrix", "parent_run_id"))
    return bool(matrix and parent) and not is_run_active(context, prefix + matrix, parent)


def _run_information(context: Any, here: dict[str, Any]) -> dict[str, Any]:
    """What the work may want to know of its run."""
    ti, begun = context["ti"], context["dag_run"].start_date
    return {
        # Two Airflows, or two prefixes in one, may share an installation.
        "place": str(INSTALLATION_FILE),
        "prefix": here["prefix"],
        "dag": context["dag"].dag_id.removeprefix(here["prefix"]),
        "run_id": context["run_id"],
        "map_index": ti.map_index,
        "params": dict(context["params"]),
        "start_date": begun.isoformat() if begun else None,
    }


def _result(context: Any, end: dict[str, Any]) -> Any:
    if end["outcome"] == "done":
        return end["value"]
    if end["outcome"] == "skip":
        if end.get("refused"):
            context["ti"].xcom_push(key="refused", value=end["refused"])
        raise AirflowSkipException(end["why"])
    raise (AirflowFailException if end["outcome"] == "fail" else TaskIncomplete)(end["why"])


class ProxyStep(BaseOperator):
    """A task whose work is done on this host. `attempt`: its id, if it is a step of one; `connections`: ids, without
    the prefix, of the Connections that it needs."""

    template_fields = ("attempt",)

    def __init__(self, *, attempt: Any = None, connections: Any = (), **others: Any) -> None:
        super().__init__(**others)
        self.attempt = attempt
        self.connections = connections

    def execute(self, context: Any) -> Any:
        prefix = installation()["prefix"]
        request: dict[str, Any] = {
            "connections": {one: BaseHook.get_connection(prefix + one).as_json() for one in self.connections}
        }
        if self.task_id == "prepare":
            runs, dag = run_step(context, "runs"), f"{prefix}experiment"
            request["dead"] = [one for one in runs if not is_run_active(context, dag, one)]
        return run_step(context, self.task_id, self.attempt, **request)


class FailureTask(BaseOperator):
    """Fails the run for a reason: that of `prepare`, which refused, or the one that is given."""

    def __init__(self, *, reason: str | None, **others: Any) -> None:
        super().__init__(**others)
        self.reason = reason

    def execute(self, context: Any) -> None:
        if reason := self.reason or context["ti"].xcom_pull(task_ids="prepare", key="refused"):
            raise AirflowFailException(reason)


class ProxyRunExperiment(TriggerDagRunOperator):
    """Gets a valid record for one cell: Faultline knows the records, and this one triggers the experiment."""

    def __init__(self, *, max_measurements: int, cell: str, **others: Any) -> None:
        super().__init__(
            trigger_dag_id=f"{installation()['prefix']}experiment",
            logical_date=None,
            reset_dag_run=True,
            wait_for_completion=True,
            poke_interval=2,
            allowed_states=FINAL_STATES,
            failed_states=[],
            deferrable=True,
            openlineage_inject_parent_info=False,
            **others,
        )
        self.max_measurements = max_measurements
        self.cell = cell

    def execute(self, context: Any) -> None:
        asked = {"conf": self.conf, "max_measurements": self.max_measurements}
        alive = is_run_active(context, self.trigger_dag_id, str(self.trigger_run_id))
        end = run_step(context, "cell", cell={**asked, "child": "running" if alive else None})
        # What this try measures is told from it.
        context["ti"].xcom_push(key="known", value=end["known"])
        if end["do"] == "trigger":
            super().execute(context)
        elif end["do"] == "wait":
            waits = DagStateTrigger(
                dag_id=self.trigger_dag_id, states=FINAL_STATES, run_ids=[str(self.trigger_run_id)], poll_interval=2
            )
            self.defer(trigger=waits, method_name="execute_complete")

    def execute_complete(self, context: Any, event: Any) -> None:
        ti = context["ti"]
        known = ti.xcom_pull(key="known", map_indexes=ti.map_index if ti.map_index >= 0 else None) or []
        # Clearing adds to the tries that there may be.
        tries = ti.try_number - (ti.max_tries - (self.retries or 0))
        asked = {"conf": self.conf, "max_measurements": self.max_measurements, "known": known, "tries": tries}
        run_step(context, "cell", cell={**asked, "ended": event[1]["run_ids"][0]})


def dags(here: dict[str, Any]) -> dict[str, DAG]:
    """The DAGs that `install` described, by their ids."""
    return {f"{here['prefix']}{one['dag']}": _dag(here, one) for one in here["dags"]}


def _dag(here: dict[str, Any], told: dict[str, Any]) -> DAG:
    with DAG(
        f"{here['prefix']}{told['dag']}",
        schedule=None,
        catchup=False,
        is_paused_upon_creation=False,
        max_active_runs=told["max_active_runs"],
        description=told["description"],
        doc_md=told["doc"],
        tags=told["tags"],
        params={name: _param(one) for name, one in told["params"].items()},
        render_template_as_native_obj=True,
    ) as dag:
        made: dict[str, Any] = {}
        for one in told["tasks"]:
            made[one["task"]] = _task(here, one, made)
        for one in told["tasks"]:
            for before in one["upstream"]:
                made[before] >> made[one["task"]]
            if one["setups"]:
                made[one["task"]].as_teardown(setups=[made[name] for name in one["setups"]])
    return dag


def _param(told: dict[str, Any]) -> Param:
    return Param(told["value"], description=told["description"], schema=told["schema"])


def _task(here: dict[str, Any], told: dict[str, Any], made: dict[str, Any]) -> Any:
    how = {
        "task_id": told["task"],
        "trigger_rule": told["trigger_rule"],
        "retries": told["retries"] or RETRIES,
        "retry_delay": RETRY_DELAY,
        "queue": here["queue"],
        **({"pool": here["pool"]} if told["in_pool"] else {}),
    }
    if told["over"]:
        at_once = {"max_active_tis_per_dagrun": told["at_once"], "map_index_template": "{{ task.cell }}"}
        return ProxyRunExperiment.partial(**how, **at_once).expand_kwargs(made[told["over"]].output)
    if told["task"].startswith("require_"):
        return FailureTask(**how, reason=told["reason"])
    attempt = made[told["needs"]].output if told["needs"] else None
    return ProxyStep(**how, attempt=attempt, connections=told["connections"])


if INSTALLATION_FILE.exists():
    globals().update(dags(installation()))
