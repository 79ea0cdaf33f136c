"""Faultline's DAGs in an Airflow of others: each task has the conductor on this host do its work, and waits.

Written into the folder of DAGs by `./faultline install`, with faultline.json beside it, and taken away by `./faultline
uninstall`. It needs nothing but Airflow. Change neither file: the next `install` writes both anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.providers.standard.triggers.external_task import DagStateTrigger
from airflow.sdk import DAG, BaseHook, BaseOperator, DagRunState, Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

PLACE = Path(__file__).with_name("faultline.json")
# How often a task that was killed finds its work again: those of its own tries are counted by the conductor.
TRIES_AFTER_KILL = 3
RETRY_DELAY = timedelta(seconds=5)
# How long a task waits for a conductor that is away: a restart takes half a minute, an upgrade some minutes.
AWAY_S = 300.0
# What the conductor may ask of this Airflow, by the names of its task instances.
ASKED = frozenset({"get_dr_count", "get_dagrun_state", "xcom_push", "xcom_pull"})
ENDED = [DagRunState.SUCCESS, DagRunState.FAILED]


class NotDone(Exception):
    """The work did not come to its end; Airflow tries again."""


def place() -> dict[str, Any]:
    """What `install` wrote down: prefix, queue, pool, the conductor's folder and socket, Connections and DAGs."""
    return dict(json.loads(PLACE.read_text()))


def conduct(context: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Has the conductor do the work of a task, and tells it meanwhile what it asks of Airflow.

    Returns how it ended, {"outcome": "done" with "value", or "defer" or "trigger"}. Raises AirflowSkipException and
    AirflowFailException as the work did, and NotDone for what may be tried again.
    """
    here, end = place(), None
    # A conductor that is killed resets the connection.
    with contextlib.suppress(OSError), _reach(here) as talk, talk.makefile("rw", encoding="utf-8") as stream:
        _say(stream, {**_about(context, here), **request})
        for line in stream:
            said = json.loads(line)
            if "log" in said:
                print(said["log"])
            elif "ask" in said:
                _say(stream, {"answer": _answer(context, here["prefix"], said["ask"], said["with"])})
            else:
                end = said
                _say(stream, {"taken": True})
                # Till the conductor has understood: the next try is to find nothing of this one.
                stream.readline()
                break
    if end is not None:
        return _judged(end)
    raise NotDone(f"{here['socket']}: the conductor went away; is `./faultline conductor` running on this host?")


def _reach(here: dict[str, Any]) -> socket.socket:
    path, host = here["socket"], socket.gethostname()
    if not Path(here["home"]).is_dir():
        raise AirflowFailException(
            f"{host} is not the host of Faultline's conductor ({here['home']} is not here): let only a worker on "
            f"{here['host']} take tasks of the queue {here['queue']}"
        )
    reached: socket.socket = Retrying(
        retry=retry_if_exception_type(NotDone),
        stop=stop_after_delay(AWAY_S),
        wait=wait_fixed(1),
        before_sleep=_say_that_it_waits,
        reraise=True,
    )(_connect, path, host)
    return reached


def _say_that_it_waits(state: Any) -> None:
    if state.attempt_number == 1:
        print(f"{state.outcome.exception()}; this task waits for it, {AWAY_S:g} s at most")


def _connect(path: str, host: str) -> socket.socket:
    talk = socket.socket(socket.AF_UNIX)
    try:
        talk.connect(path)
        if os.stat(path).st_uid != os.getuid():
            raise PermissionError
    except PermissionError:
        talk.close()
        raise AirflowFailException(
            f"{path}: is another user's than {os.getuid()}, who runs this task; run worker and conductor as one user"
        ) from None
    except OSError as error:
        talk.close()
        raise NotDone(
            f"{path}: no conductor answers on {host} ({error}); start `./faultline conductor` there"
        ) from None
    return talk


def _say(stream: Any, value: dict[str, Any]) -> None:
    stream.write(json.dumps(value, default=str) + "\n")
    stream.flush()


def _about(context: Any, here: dict[str, Any]) -> dict[str, Any]:
    """What the work may want to know of its run."""
    ti, run = context["ti"], context["dag_run"]
    times = {"logical_date": context.get("logical_date"), "run_after": run.run_after, "start_date": run.start_date}
    return {
        # Two Airflows, or two prefixes in one, may have a conductor in common.
        "place": str(PLACE),
        "prefix": here["prefix"],
        "dag": context["dag"].dag_id.removeprefix(here["prefix"]),
        "task": ti.task_id,
        "run_id": context["run_id"],
        "map_index": ti.map_index,
        "try_number": ti.try_number,
        "max_tries": ti.max_tries,
        "params": dict(context["params"]),
        **{name: value.isoformat() if value else None for name, value in times.items()},
    }


def _answer(context: Any, prefix: str, name: str, given: dict[str, Any]) -> Any:
    if name not in ASKED:
        raise AirflowFailException(f"conductor: asks for {name}, which no work needs; install the folder of DAGs anew")
    if "dag_id" in given:
        given["dag_id"] = prefix + given["dag_id"]
    value = getattr(context["ti"], name)(**given)
    return str(getattr(value, "value", value)) if name == "get_dagrun_state" else value


def _judged(said: dict[str, Any]) -> dict[str, Any]:
    if said["outcome"] == "skip":
        raise AirflowSkipException(said["why"])
    if said["outcome"] == "fail":
        raise AirflowFailException(said["why"])
    if said["outcome"] == "error":
        raise NotDone(said["why"])
    return said


class Conducted(BaseOperator):
    """A task whose work the conductor does. `arguments`: what it is given, such as the attempt's id; `connections`:
    ids, without the prefix, of the Connections that it needs."""

    template_fields = ("arguments",)

    def __init__(self, *, arguments: Any = (), connections: Any = (), **others: Any) -> None:
        super().__init__(**others)
        self.arguments = arguments
        self.connections = connections

    def execute(self, context: Any) -> Any:
        prefix = place()["prefix"]
        known = {one: BaseHook.get_connection(prefix + one).as_json() for one in self.connections}
        return conduct(context, {"arguments": list(self.arguments), "connections": known}).get("value")


class Cell(TriggerDagRunOperator):
    """Gets a valid record for one cell: the conductor knows the records, and this one triggers the experiment."""

    def __init__(self, *, max_measurements: int, cell: str, **others: Any) -> None:
        super().__init__(
            trigger_dag_id=f"{place()['prefix']}experiment",
            logical_date=None,
            reset_dag_run=True,
            wait_for_completion=True,
            poke_interval=2,
            allowed_states=ENDED,
            failed_states=[],
            deferrable=True,
            openlineage_inject_parent_info=False,
            **others,
        )
        self.max_measurements = max_measurements
        self.cell = cell

    def execute(self, context: Any) -> None:
        outcome = conduct(context, {"cell": self._cell()})["outcome"]
        if outcome == "trigger":
            super().execute(context)
        elif outcome == "defer":
            waits = DagStateTrigger(
                dag_id=self.trigger_dag_id, states=ENDED, run_ids=[str(self.trigger_run_id)], poll_interval=2
            )
            self.defer(trigger=waits, method_name="execute_complete")

    def execute_complete(self, context: Any, event: Any) -> None:
        conduct(context, {"cell": self._cell(), "ended": list(event[1]["run_ids"])})

    def _cell(self) -> dict[str, Any]:
        names = ("conf", "trigger_run_id", "max_measurements", "cell", "retries")
        return {name: getattr(self, name) for name in names}


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
        "retries": told["retries"] or TRIES_AFTER_KILL,
        "retry_delay": RETRY_DELAY,
        "queue": here["queue"],
        **({"pool": here["pool"]} if told["in_pool"] else {}),
    }
    if told["over"]:
        at_once = {"max_active_tis_per_dagrun": told["at_once"], "map_index_template": "{{ task.cell }}"}
        return Cell.partial(**how, **at_once).expand_kwargs(made[told["over"]].output)
    arguments = [made[told["needs"]].output] if told["needs"] else []
    return Conducted(**how, arguments=arguments, connections=told["connections"])


if PLACE.exists():
    globals().update(dags(place()))
