"""Structure of Faultline's DAGs as JSON, for the DAG folder of an external Airflow."""

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

# Tasks that start no work on a cluster and need no Connections.
_CONNECTION_FREE_TASKS = frozenset({"require_accepted", "require_success", "plan", "judge"})
# Omitted, because this task triggers experiments through the API of the embedded Airflow.
OMITTED_TASK = "search"
# Tasks that start a JVM on this machine, which reads an experiment's files.
_SUBMITTED_TASKS = frozenset({"harvest", "aggregate"})
LOCAL_CONNECTION = "spark_local"


def exported_dags() -> list[DAG]:
    """Return the DAGs that work in an external Airflow: the experiment and every matrix, without nightly DAGs."""
    return [experiment_dag(), *(matrix_dag(name) for name in MATRICES)]


def describe_dag(dag: DAG, connections: list[str]) -> dict[str, Any]:
    """Return a DAG's structure.

    `connections`: ids of all Connections that an experiment may need.
    """
    measures = dag.dag_id == EXPERIMENT
    return {
        "dag": dag.dag_id,
        "description": dag.description,
        "doc": dag.doc_md,
        "tags": sorted(dag.tags),
        # In a pool of one slot, a second run would wait for the machine and block the first one.
        "max_active_runs": 1 if measures else dag.max_active_runs,
        "params": {name: _param(dag.params.get_param(name)) for name in dag.params if name not in SEARCH_PARAMS},
        "tasks": [_task(dag, name, connections, in_pool=measures) for name in _topological_order(dag)],
    }


def _topological_order(dag: DAG) -> list[str]:
    """Return the ids of the tasks in topological order."""
    left, order = dict.fromkeys(name for name in dag.task_dict if name != OMITTED_TASK), []
    while left:
        ready = [name for name in left if not _upstream_of(dag, name) & left.keys()]
        order += ready
        left = {name: None for name in left if name not in ready}
    return order


def _upstream_of(dag: DAG, name: str) -> set[str]:
    """Return the tasks directly upstream of a task, except OMITTED_TASK."""
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
        # Airflow sets the trigger rule of a teardown.
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
    """Return the task whose return value this task receives; None if there is none."""
    given = [*getattr(task, "op_args", ()), *getattr(task, "op_kwargs", {}).values(), getattr(task, "attempt_id", None)]
    return next((one.operator.task_id for one in given if isinstance(one, XComArg)), None)


def _connection_ids(name: str, known: list[str]) -> list[str]:
    # The harvest may run a user program, which must not see the harness credentials.
    return [one for one in known if (one == LOCAL_CONNECTION) == (name in _SUBMITTED_TASKS)]
