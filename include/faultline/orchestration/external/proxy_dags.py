"""DAGs of Faultline in an external Airflow; each task runs `./faultline step` on this host.

`./faultline airflow install` writes this file and faultline.json into the DAG folder; `./faultline airflow uninstall`
removes them. This file imports only Airflow and the standard library. The next installation overwrites changes.
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
# Retries of a killed task; a retry finds the task's process again. Final failures are not retried.
RETRIES = 3
RETRY_DELAY = timedelta(seconds=5)
# Variables of this environment that `./faultline step` inherits.
INHERITED_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_RUNTIME_DIR")
ACTIVE_STATES = ("queued", "running")
FINAL_STATES = [DagRunState.SUCCESS, DagRunState.FAILED]


class TaskIncomplete(Exception):
    """Task that did not finish; Airflow retries it."""


def installation() -> dict[str, Any]:
    """Return the stored installation: prefix, queue, pool, Faultline's folders, Connections and DAGs."""
    return dict(json.loads(INSTALLATION_FILE.read_text()))


def run_step(context: Any, name: str, attempt: str | None = None, **request: Any) -> Any:
    """Run a step or another task through `./faultline step`, print its output, and return its value.

    Raises AirflowSkipException or AirflowFailException if the step ends that way, and TaskIncomplete if a retry may
    help.
    """
    installed, end, last = installation(), None, "no message"
    _require_host(installed)
    environment = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    environment |= {"FAULTLINE_HOME": installed["home"], "FAULTLINE_RESULTS": installed["results"]}
    with subprocess.Popen(
        [installed["command"], "step", name, *([attempt] if attempt else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=installed["home"],
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            # The request contains secrets, so it is passed through standard input.
            with process.stdin as stream:
                stream.write(json.dumps({**_run_information(context, installed), **request}, default=str))
            for line in process.stdout:
                word = _message(line)
                if "outcome" in word:
                    end = word
                elif "wait" not in word:
                    last = str(word.get("log", line)).rstrip()
                    print(last)
                elif is_parent_stopped(context, installed["prefix"]):
                    Path(word["wait"]).touch()
        finally:
            # This ends only the follower; the step's process continues, and the next try finds it.
            process.terminate()
    if end is None:
        raise TaskIncomplete(f"./faultline step {name}: failed with status {process.returncode}: {last}")
    return _result(context, end)


def _message(line: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError):
        return {"log": line.rstrip()}


def _require_host(installed: dict[str, Any]) -> None:
    home, host = Path(installed["home"]), socket.gethostname()
    if not home.is_dir():
        raise AirflowFailException(
            f"{host}: {home} not found; fix: run the queue {installed['queue']} on a worker of {installed['host']} only"
        )
    if (owner := home.stat().st_uid) != os.getuid():
        raise AirflowFailException(
            f"{home}: owned by user {owner}, but the task runs as {os.getuid()}; fix: run it as {owner}"
        )


def is_run_active(context: Any, dag: str, run_id: str) -> bool:
    """Return whether a run is queued or running in this Airflow."""
    ti = context["ti"]
    return bool(ti.get_dr_count(dag_id=dag, run_ids=[run_id], states=list(ACTIVE_STATES)))


def is_parent_stopped(context: Any, prefix: str) -> bool:
    """Return whether the sweep that requested this experiment has ended or was deleted."""
    matrix, parent = (context["params"].get(one) for one in ("matrix", "parent_run_id"))
    return bool(matrix and parent) and not is_run_active(context, prefix + matrix, parent)


def _run_information(context: Any, installed: dict[str, Any]) -> dict[str, Any]:
    """Return the information about the DAG run that a step may need."""
    ti, begun = context["ti"], context["dag_run"].start_date
    return {
        # Two external Airflows, or two prefixes in one, may share an installation.
        "place": str(INSTALLATION_FILE),
        "prefix": installed["prefix"],
        "dag": context["dag"].dag_id.removeprefix(installed["prefix"]),
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
    """Task whose work runs on this host.

    `attempt`: its id, for a step of an attempt. `connections`: ids, without the prefix, of the required Connections.
    """

    template_fields = ("attempt",)

    def __init__(self, *, attempt: Any = None, connections: Any = (), **arguments: Any) -> None:
        super().__init__(**arguments)
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
    """Task that fails the run with the given reason; None: with the reason why `prepare` refused."""

    def __init__(self, *, reason: str | None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.reason = reason

    def execute(self, context: Any) -> None:
        if reason := self.reason or context["ti"].xcom_pull(task_ids="prepare", key="refused"):
            raise AirflowFailException(reason)


class ProxyRunExperiment(TriggerDagRunOperator):
    """Task that gets one usable record per cell: Faultline checks records, and the task triggers the experiment."""

    def __init__(self, *, max_measurements: int, cell: str, **arguments: Any) -> None:
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
            **arguments,
        )
        self.max_measurements = max_measurements
        self.cell = cell

    def execute(self, context: Any) -> None:
        query = {"conf": self.conf, "max_measurements": self.max_measurements}
        alive = is_run_active(context, self.trigger_dag_id, str(self.trigger_run_id))
        end = run_step(context, "cell", cell={**query, "child": "running" if alive else None})
        # Attempts that are not in this list belong to this try.
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
        # Clearing increases `max_tries`.
        tries = ti.try_number - (ti.max_tries - (self.retries or 0))
        query = {"conf": self.conf, "max_measurements": self.max_measurements, "known": known, "tries": tries}
        run_step(context, "cell", cell={**query, "ended": event[1]["run_ids"][0]})


def dags(installed: dict[str, Any]) -> dict[str, DAG]:
    """Return the DAGs of the installation, by id."""
    return {f"{installed['prefix']}{one['dag']}": _dag(installed, one) for one in installed["dags"]}


def _dag(installed: dict[str, Any], spec: dict[str, Any]) -> DAG:
    with DAG(
        f"{installed['prefix']}{spec['dag']}",
        schedule=None,
        catchup=False,
        is_paused_upon_creation=False,
        max_active_runs=spec["max_active_runs"],
        description=spec["description"],
        doc_md=spec["doc"],
        tags=spec["tags"],
        params={name: _param(one) for name, one in spec["params"].items()},
        render_template_as_native_obj=True,
    ) as dag:
        tasks: dict[str, Any] = {}
        for one in spec["tasks"]:
            tasks[one["task"]] = _task(installed, one, tasks)
        for one in spec["tasks"]:
            for before in one["upstream"]:
                tasks[before] >> tasks[one["task"]]
            if one["setups"]:
                tasks[one["task"]].as_teardown(setups=[tasks[name] for name in one["setups"]])
    return dag


def _param(spec: dict[str, Any]) -> Param:
    return Param(spec["value"], description=spec["description"], schema=spec["schema"])


def _task(installed: dict[str, Any], spec: dict[str, Any], tasks: dict[str, Any]) -> Any:
    options = {
        "task_id": spec["task"],
        "trigger_rule": spec["trigger_rule"],
        "retries": spec["retries"] or RETRIES,
        "retry_delay": RETRY_DELAY,
        "queue": installed["queue"],
        **({"pool": installed["pool"]} if spec["in_pool"] else {}),
    }
    if spec["over"]:
        at_once = {"max_active_tis_per_dagrun": spec["at_once"], "map_index_template": "{{ task.cell }}"}
        return ProxyRunExperiment.partial(**options, **at_once).expand_kwargs(tasks[spec["over"]].output)
    if spec["task"].startswith("require_"):
        return FailureTask(**options, reason=spec["reason"])
    attempt = tasks[spec["needs"]].output if spec["needs"] else None
    return ProxyStep(**options, attempt=attempt, connections=spec["connections"])


if INSTALLATION_FILE.exists():
    globals().update(dags(installation()))
