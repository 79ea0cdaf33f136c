"""The work of one task of a guest's DAG, in a process of its own that the conductor starts.

It is the work of the same task in Faultline's own Airflow. What that asks of Airflow, this asks the thin task through
the conductor. The task may be killed and come back meanwhile: then it waits for the answer.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Mapping
from datetime import datetime
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.definitions._internal import contextmanager
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DagRunTriggerException, TaskDeferred

from faultline.experiment.cell import EXPERIMENT
from faultline.orchestration import experiment, sweep
from faultline.orchestration.guest.guest_run import GUEST_RUN
from faultline.orchestration.run_experiment import RunExperiment
from faultline.system.errors import ConfigError

# Under which Airflow looks for a Connection in the environment.
CONNECTION = "AIRFLOW_CONN_"


def run(request: Mapping[str, Any], pipe: Connection) -> None:
    """Does the work of a task; sends what it prints, what it asks, and at last how it ended."""
    os.environ[GUEST_RUN] = "1"
    for name, value in request.get("connections", {}).items():
        os.environ[f"{CONNECTION}{name.upper()}"] = value
    lines = Lines(pipe)
    sys.stdout = sys.stderr = lines
    logging.basicConfig(stream=lines, level=logging.INFO, format="%(levelname)s %(message)s", force=True)
    end = outcome(request, pipe)
    lines.flush()
    pipe.send(end)


def outcome(request: Mapping[str, Any], pipe: Connection) -> dict[str, Any]:
    """How the work ended: done with its value, defer or trigger; skip, fail or error with the reason."""
    try:
        return {"outcome": "done", "value": perform(request, pipe)}
    except AirflowSkipException as error:
        return {"outcome": "skip", "why": str(error)}
    except (AirflowFailException, ConfigError) as error:
        return {"outcome": "fail", "why": str(error)}
    except TaskDeferred:
        return {"outcome": "defer"}
    except DagRunTriggerException:
        return {"outcome": "trigger"}
    except BaseException as error:
        traceback.print_exc()
        return {"outcome": "error", "why": f"{type(error).__name__}: {error}"}


def perform(request: Mapping[str, Any], pipe: Connection) -> Any:
    """Calls what Faultline's own DAG has as this task."""
    context = context_of(request, pipe)
    contextmanager._CURRENT_CONTEXT.append(context)
    name, given = str(request["task"]), list(request.get("arguments", ()))
    if cell := request.get("cell"):
        task: Any = RunExperiment(task_id=name, **cell)
        if "ended" in request:
            return task.execute_complete(context, (None, {"run_ids": request["ended"]}))
    elif name == "harvest":
        task = experiment.HarvestOperator(task_id=name, attempt_id=given[0])
    elif name == "aggregate":
        task = sweep.Aggregate(task_id=name)
    else:
        of = experiment if request["dag"] == EXPERIMENT else sweep
        return getattr(of, name).function(*given)
    # As Airflow's own runner of tasks does.
    ExecutorSafeguard.tracker.set(task)
    return task.execute(context)


def context_of(request: Mapping[str, Any], pipe: Connection) -> dict[str, Any]:
    """What stands for Airflow's context of a task."""

    def moment(name: str) -> datetime | None:
        return datetime.fromisoformat(request[name]) if request.get(name) else None

    run = SimpleNamespace(run_id=request["run_id"], run_after=moment("run_after"), start_date=moment("start_date"))
    return {
        "params": dict(request["params"]),
        "run_id": request["run_id"],
        "dag": SimpleNamespace(dag_id=request["dag"]),
        "dag_run": run,
        "logical_date": moment("logical_date"),
        "ti": TaskInstance(request, pipe),
    }


class TaskInstance:
    """Stands for Airflow's: what it is asked, it asks the thin task."""

    def __init__(self, request: Mapping[str, Any], pipe: Connection) -> None:
        self.task_id, self.run_id = request["task"], request["run_id"]
        self.map_index = int(request["map_index"])
        self.try_number, self.max_tries = int(request["try_number"]), int(request["max_tries"])
        self._pipe = pipe

    def get_dr_count(self, **given: Any) -> int:
        return int(self._ask("get_dr_count", given))

    def get_dagrun_state(self, **given: Any) -> str:
        return str(self._ask("get_dagrun_state", given))

    def xcom_push(self, key: str, value: Any) -> None:
        self._ask("xcom_push", {"key": key, "value": value})

    def xcom_pull(self, **given: Any) -> Any:
        return self._ask("xcom_pull", given)

    def _ask(self, name: str, given: Mapping[str, Any]) -> Any:
        self._pipe.send({"ask": name, "with": given})
        return self._pipe.recv()["answer"]


class Lines:
    """Takes what is printed, and sends it a line at a time."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._rest = pipe, ""

    def write(self, text: str) -> int:
        *whole, self._rest = (self._rest + text).split("\n")
        for line in whole:
            self._pipe.send({"log": line})
        return len(text)

    def flush(self) -> None:
        """Sends a last line that no line break ends."""
        if self._rest:
            self._pipe.send({"log": self._rest})
            self._rest = ""

    def isatty(self) -> bool:
        return False
