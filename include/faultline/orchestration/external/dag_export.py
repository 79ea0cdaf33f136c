"""The structure of Faultline's own DAGs as JSON, for the folder of an external Airflow."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.param import NOTSET
from airflow.sdk.definitions.xcom_arg import XComArg

from faultline.experiment.cell import EXPERIMENT
from faultline.experiment.matrices import MATRICES
from faultline.orchestration.experiment import experiment_dag
from faultline.orchestration.matrix_dag import UNMEASURED, matrix_dag
from faultline.orchestration.planning import SEARCH_PARAMS

# These begin no cluster's work, and need none of its Connections.
_CONNECTION_FREE_TASKS = frozenset({"require_accepted", "require_success", "plan", "judge"})
# It begins its experiments through the API of an Airflow of Faultline's own.
OMITTED_TASK = "search"
# Read what an experiment left on this machine, in one JVM of their own.
_LOCAL_SPARK_TASKS = frozenset({"harvest", "aggregate"})
LOCAL_CONNECTION = "spark_local"


def exported_dags() -> list[DAG]:
    """Those that work as a guest: the experiment and every matrix. Nights stay with an Airflow of Faultline's own."""
    return [experiment_dag(), *(matrix_dag(name) for name in MATRICES)]


def describe_dag(dag: DAG, connections: list[str]) -> dict[str, Any]:
    """A DAG's structure. `connections`: the ids of all that an experiment may need."""
    measures = dag.dag_id == EXPERIMENT
    return {
        "dag": dag.dag_id,
        "description": dag.description,
        "doc": dag.doc_md,
        "tags": sorted(dag.tags),
        # In a pool of one slot a second run would wait for the machine, and keep the first one from going on.
        "max_active_runs": 1 if measures else dag.max_active_runs,
        "params": {name: _param(dag.params.get_param(name)) for name in dag.params if name not in SEARCH_PARAMS},
        "tasks": [_task(dag, name, connections, in_pool=measures) for name in _topological_order(dag)],
    }


def _topological_order(dag: DAG) -> list[str]:
    """Ids of the tasks, each after those that come before it."""
    left, order = dict.fromkeys(name for name in dag.task_dict if name != OMITTED_TASK), []
    while left:
        ready = [name for name in left if not _upstream_of(dag, name) & left.keys()]
        order += ready
        left = {name: None for name in left if name not in ready}
    return order


def _upstream_of(dag: DAG, name: str) -> set[str]:
    """The tasks that come right before another one."""
    before = set(dag.get_task(name).upstream_task_ids)
    return before - {OMITTED_TASK} | dag.get_task(OMITTED_TASK).upstream_task_ids if OMITTED_TASK in before else before


def _param(param: Param) -> dict[str, Any]:
    value = None if param.value is NOTSET else param.value
    return {"value": value, "description": param.description, "schema": param.schema}


def _task(dag: DAG, name: str, connections: list[str], *, in_pool: bool) -> dict[str, Any]:
    task: Any = dag.get_task(name)
    mapped = isinstance(task, MappedOperator)
    setups = [one for one in sorted(task.upstream_task_ids) if dag.get_task(one).is_setup] if task.is_teardown else []
    return {
        "task": name,
        "upstream": sorted(_upstream_of(dag, name)),
        # A teardown has a rule of its own, which Airflow sets.
        "trigger_rule": "all_success"
        if task.is_teardown
        else str(getattr(task.trigger_rule, "value", task.trigger_rule)),
        "retries": task.retries,
        "needs": None if mapped else _input_task(task),
        "over": task.expand_input.value.operator.task_id if mapped else None,
        "at_once": task.max_active_tis_per_dagrun,
        "setups": setups,
        "in_pool": in_pool,
        "reason": UNMEASURED if name == "require_success" else None,
        "connections": [] if mapped or name in _CONNECTION_FREE_TASKS else _connection_ids(name, connections),
    }


def _input_task(task: Any) -> str | None:
    """The task whose value this one is given."""
    given = [*getattr(task, "op_args", ()), *getattr(task, "op_kwargs", {}).values(), getattr(task, "attempt_id", None)]
    return next((one.operator.task_id for one in given if isinstance(one, XComArg)), None)


def _connection_ids(name: str, known: list[str]) -> list[str]:
    # What harvest runs may be a user's own program, whose environment is no place for the harness's login.
    return [one for one in known if (one == LOCAL_CONNECTION) == (name in _LOCAL_SPARK_TASKS)]
