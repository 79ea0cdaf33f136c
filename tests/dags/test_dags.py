"""Integrity, structure and forms of the DAGs, as Airflow reads them."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError

from benchmarks.crash import STEPS
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import plan
from faultline.experiment.nightly_file import NIGHTLY, SPEED
from faultline.orchestration import matrix_dag
from faultline.orchestration.forms import SECTIONS, value_text
from faultline.orchestration.nightly.dag_factory import nightly_cells
from faultline.orchestration.planning import order_of
from faultline.orchestration.run_experiment import retry_policy, run_state
from faultline.records.store import Store
from faultline.records.sweep_plan import SweepPlans
from faultline.system.errors import ConfigError, InfrastructureError, InvalidMeasurement
from faultline.system.settings import ROOT, Settings
from tests.support.form_values import form_values, wrong_value
from tests.unit.sample_records import sample


def test_every_dag_file_is_read_without_error_and_holds_wiring_only(bag: Any) -> None:
    assert bag.import_errors == {}
    assert set(bag.dags) == set(FORMS)
    for path in (ROOT / "dags").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            assert isinstance(node, ast.Expr | ast.ImportFrom | ast.Assign), f"{path.name}:{node.lineno}"


def test_the_experiment_runs_its_steps_in_order_while_the_next_one_waits_for_its_turn(bag: Any) -> None:
    dag = bag.dags["experiment"]
    task = dag.get_task
    assert (dag.max_active_runs, dag.schedule, dag.is_paused_upon_creation) == (2, None, False)
    assert sorted(dag.task_ids) == sorted([*STEPS, "require_accepted"])
    assert task("require_accepted").trigger_rule == "all_skipped"
    assert task("require_accepted").upstream_task_ids == {"provision_topics"}
    waits = "start_recorder"  # in parallel to the topics; both must end before a process starts
    assert {"provision_topics", waits} <= task("prepare").downstream_task_ids
    assert "start_generator" in task("provision_topics").downstream_task_ids
    chain = [waits, *STEPS[STEPS.index(waits) + 1 :]]
    for before, after in zip(chain, chain[1:], strict=False):
        assert after in task(before).downstream_task_ids
    assert task("prepare").is_setup and task("teardown").is_teardown
    assert "prepare" in task("teardown").upstream_task_ids
    assert {task_id for task_id in STEPS if task(task_id).retries} == {"harvest", "judge"}, "others are never retried"


def test_the_form_has_every_parameter_once_with_its_default_and_help(bag: Any) -> None:
    params = bag.dags["experiment"].params
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(Configuration.model_fields)
    for name, field in Configuration.model_fields.items():
        param = params.get_param(name)
        assert param.value == (None if name == "duration_s" else field.default)
        assert param.description and param.schema["section"] in SECTIONS
    assert order_of(params.dump()).config == parse_configuration({}), "untouched"


@pytest.mark.parametrize("dag_id", MATRICES)
def test_a_matrix_plans_measures_and_aggregates(bag: Any, dag_id: str) -> None:
    dag = bag.dags[dag_id]
    assert dag.leaves == [dag.get_task("require_success")], "the run fails with any of its tasks"
    search = ["search"] if MATRICES[dag_id].search else []
    after = (*search, "aggregate")[0]
    downstream = {name: dag.get_task(name).downstream_task_ids - {"require_success"} for name in dag.task_ids}
    assert downstream == {
        "plan": {"run_experiment", *search}, "run_experiment": {after}, "aggregate": set(), "require_success": set(),
        **{name: {"aggregate"} for name in search},
    }  # fmt: skip
    assert dag.get_task("require_success").upstream_task_ids == downstream.keys() - {"require_success"}
    rules = {name: dag.get_task(name).trigger_rule for name in ("require_success", "aggregate", *search)}
    # A sweep that finds nothing missing may still search.
    assert rules == {"require_success": "one_failed", "aggregate": "all_done", **dict.fromkeys(search, "all_done")}
    mapped = dag.get_task("run_experiment")
    assert mapped.is_mapped and mapped.max_active_tis_per_dagrun == 2
    assert MATRICES[dag_id].text in dag.doc_md


@pytest.mark.parametrize("dag_id", MATRICES)
@pytest.mark.parametrize("bad", [[], "1, 1", [1, 1], "2..1", "1..2 x1"])
def test_a_wrong_axis_is_refused(bag: Any, dag_id: str, bad: object) -> None:
    for axis in MATRICES[dag_id].axes:
        given = bag.dags[dag_id].params.dump() | {axis: bad}
        with pytest.raises(ConfigError, match=f"^{axis}: "):
            MATRICES[dag_id].resolve(given)


@pytest.mark.parametrize("dag_id", MATRICES)
def test_the_form_is_empty_and_lists_the_values_of_each_preset(bag: Any, dag_id: str) -> None:
    params, spec = bag.dags[dag_id].params, MATRICES[dag_id]
    shown = params.dump()
    assert all(shown[name] is None for name in (*Configuration.model_fields, "axes", "repetitions", "controls"))
    assert spec.matrix(spec.resolve(shown)).cells("s") == spec.preset_matrix().cells("s")
    help_of_presets = params.get_param("preset").schema["description_md"]
    for preset in spec.presets:
        assert f"| `{preset}` |" in help_of_presets
        for name, value in spec.values(preset).items():
            expected = params.get_param(name).description
            assert preset in expected and (name in spec.axes or value_text(value) in expected), (name, expected)
    with pytest.raises(ParamValidationError):
        params.get_param("preset").resolve("papers")


def test_recovery_breaks_every_victim_at_every_interval_among_controls(bag: Any) -> None:
    params = MATRICES["recovery"].resolve(bag.dags["recovery"].params.dump())
    cells = MATRICES["recovery"].matrix(params).cells("s")
    points = [(cell.config.fault, cell.config.checkpoint_interval_s) for cell in cells]
    victims = ["executor", "worker", "driver", "python_worker", "kafka"]
    assert sorted(points) == sorted(
        (victim, interval) for victim in [*victims, "none"] for interval in (2.0, 5.0, 20.0) for _ in range(5)
    )
    for cell in cells:
        config = cell.config
        longer_s = 45 if config.fault == "driver" else 0
        assert config.workload == "word_count_python"
        assert config.duration_s == {2.0: 55, 5.0: 81, 20.0: 261}[config.checkpoint_interval_s] + longer_s
        assert [one.fault.action for one in config.planned_faults()] == ([] if config.fault == "none" else ["kill"])
    order = [cell.config.fault for cell in plan(cells, [], only_missing=True, seed=1)]
    assert order != [cell.config.fault for cell in cells], "controls are measured among the others"


@pytest.fixture
def planned(bag: Any, installed: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Plan of the task for a DAG run with these form values."""
    context: dict[str, Any] = {"dag_run": SimpleNamespace(conf={})}
    monkeypatch.setattr(matrix_dag, "get_current_context", lambda: context)

    def plan(dag_id: str, run_id: str, **form: Any) -> list[Any]:
        dag = bag.dags[dag_id]
        context.update(dag=dag, run_id=run_id, params={**dag.params.dump(), "build": "b1", **form})
        return list(matrix_dag.plan.function())

    return plan


def test_a_question_plans_blocks_up_to_its_budget_and_a_wrong_one_plans_nothing(
    planned: Callable[..., list[Any]], installed: Settings, notes: list[Any]
) -> None:
    asked = {"figure": "cpu_cores.total", "along": "rate", "smallest": 0.1, "experiments": 32}
    run_id = "manual__2026-11-21T06:40:30+00:00"
    made = planned("input_rate", run_id, decide=asked)
    confs = [one["conf"] for one in made]
    repetitions = [one["repetition"] for one in confs]
    assert repetitions == sorted(repetitions) and len(made) == 39, "block after block, and what early ones may leave"
    orders = {tuple(one["rate"] for one in confs[3 * block : 3 * block + 3]) for block in range(10)}
    assert len(orders) > 1 and all(set(order) == {100.0, 500.0, 2500.0} for order in orders)
    names = {one["cell"] for one in made}
    assert len(names) == len(made) and "rate 2,500 records/s, control, r0" in names, "each has a name of its own"
    assert "decide" not in confs[0], "it is the sweep's, not the experiment's"
    kept = SweepPlans(installed.results).read("20261121T064030")
    assert kept is not None and kept.decide is not None and kept.decide.comparisons == 2 and len(kept.cells) == 39
    for wrong, words in (
        ({"figure": "cpu"}, "decide.figure: "),
        ({"along": "state_mb"}, "decide.along: "),
        ({"experiments": 8}, "decide.experiments: got 8; expected 15 or more"),
    ):
        with pytest.raises(AirflowFailException, match=words):
            planned("input_rate", run_id, decide={**asked, **wrong})
        assert notes[-1][-1].startswith("**Not planned.** decide.")


def test_measuring_again_ignores_earlier_records_and_so_does_a_resumed_sweep(
    planned: Callable[..., list[Any]], installed: Settings
) -> None:
    asked = {"axes": "seed=1, 2", "fault": "none", "repetitions": 1}
    one, other = (each["conf"] for each in planned("sweep", "first", **asked))
    before = sample(**{key: one[key] for key in Configuration.model_fields}, attempt="20261121T061500Z-00000a")
    update = {"series": "b1", "sweep_id": "first", "repetition": 0, "measured_at": "2020-01-01T00:00:00.000+00:00"}
    before = before.model_copy(update=update)
    Store(installed.results).write(before)
    assert [each["conf"]["seed"] for each in planned("sweep", "second", **asked)] == [other["seed"]]
    repeated, resumed = (
        planned("sweep", "third", **asked, only_missing=False),
        planned("sweep", "fourth", resume="third"),
    )
    assert len(repeated) == len(resumed) == 2 and not any(
        each["conf"]["only_missing"] for each in [*repeated, *resumed]
    )
    plans = SweepPlans(installed.results)
    (since,) = {getattr(plans.read(name), "since", None) for name in ("third", "fourth")}
    assert since is not None and since > before.measured_at
    after = {"attempt": "20261121T061500Z-00000b", "sweep_id": "third", "measured_at": since}
    Store(installed.results).write(before.model_copy(update=after))
    assert [each["conf"]["seed"] for each in planned("sweep", "fifth", resume="third")] == [other["seed"]]


def test_a_sweep_of_another_build_is_not_resumed(
    planned: Callable[..., list[Any]], installed: Settings, notes: list[Any]
) -> None:
    planned("sweep", "first", axes="seed=1, 2", fault="none", repetitions=1)
    expected = r"resume: first: got build b2; expected b1"
    with pytest.raises(AirflowFailException, match=expected):
        planned("sweep", "second", resume="first", build="b2")
    assert notes[-1][-1].startswith("**Not planned.**")
    assert SweepPlans(installed.results).read("second") is None


def test_wrong_input_fails_at_once_and_what_broke_is_tried_again() -> None:
    from airflow.sdk import RetryAction

    actions = [(ConfigError, RetryAction.FAIL), (InfrastructureError, RetryAction.RETRY)]
    for kind, action in (*actions, (InvalidMeasurement, RetryAction.RETRY)):
        assert retry_policy().evaluate(kind("x"), try_number=1, max_tries=9).action == action


def test_the_state_of_another_run_is_its_value() -> None:
    """The SDK returns an enumeration whose text is not its value."""
    from airflow.sdk.api.datamodels._generated import DagRunState

    class Instance:
        def get_dagrun_state(self, dag_id: str, run_id: str) -> object:
            return DagRunState.FAILED

    assert run_state({"ti": Instance()}, "a", "r") == "failed"


FORMS = ["experiment", NIGHTLY, SPEED, *MATRICES]
# What the form chooses its widgets by; of a field that may be empty it looks at the other type.
WIDGETS = {"boolean", "array", "object", "string", "number", "integer"}


def refused(schema: dict[str, Any], value: Any) -> bool:
    return not jsonschema.Draft7Validator(schema).is_valid(value)


def triggered(dag: Any, conf: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a run triggered with `conf`, as Airflow makes them."""
    params = copy.deepcopy(dag.params)
    params.update(conf)
    values: dict[str, Any] = params.validate()
    return values


@pytest.mark.parametrize("dag_id", FORMS)
def test_every_field_takes_a_legal_value_and_shows_its_default(bag: Any, dag_id: str) -> None:
    params, values = bag.dags[dag_id].params, form_values(dag_id)
    assert set(values) == set(params), "a new field needs a value in tests/support/form_values.py"
    for name, value in values.items():
        param = params.get_param(name)
        jsonschema.Draft7Validator.check_schema(param.schema)
        assert not refused(param.schema, value), name
        assert not refused(param.schema, param.value), f"{name}: its default"
    assert triggered(bag.dags[dag_id], values) == values


@pytest.mark.parametrize("dag_id", FORMS)
def test_every_field_has_one_widget_and_refuses_what_it_cannot_show(bag: Any, dag_id: str) -> None:
    params = bag.dags[dag_id].params
    for name in params:
        schema = params.get_param(name).schema
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        # With several types the form uses the first; with examples it is a line of text.
        kind, *others = [one for one in types if one != "null"]
        assert kind in WIDGETS and (not others or (kind == "string" and schema["examples"])), name
        if others:
            assert refused(schema, {"a": 1}) or "object" in others, name
            continue
        # Text is what the form makes of everything but numbers, switches and editors.
        wrong = {"string": 5, "boolean": "yes", "number": "5", "integer": 2.5, "array": "x", "object": "x"}[kind]
        assert refused(schema, wrong), name
        with pytest.raises(ParamValidationError):
            triggered(bag.dags[dag_id], {name: wrong})
        assert refused(schema, None) == ("null" not in types), name


@pytest.mark.parametrize("dag_id", FORMS)
def test_a_wrong_value_is_refused_by_its_name(bag: Any, dag_id: str) -> None:
    wrong = [wrong_value(dag_id), *([("build", "two words")] if "build" in bag.dags[dag_id].params else [])]
    if dag_id == "experiment":
        wrong += [("rate", 0), ("rate", -5), ("rate", 2e9), ("workload", "wordcount"), ("partitions", 2.5)]
        wrong += [("commit_mode", "exactly-once"), ("state_touch", 1.5), ("repetition", -1)]
    for name, value in wrong:
        with pytest.raises(ParamValidationError, match=f"Invalid input for param {name}: "):
            triggered(bag.dags[dag_id], {name: value})


@pytest.mark.parametrize("dag_id", FORMS)
def test_the_legal_values_are_legal_together(bag: Any, dag_id: str) -> None:
    values = triggered(bag.dags[dag_id], form_values(dag_id))
    if dag_id in MATRICES:
        spec = MATRICES[dag_id]
        assert len(spec.matrix(spec.resolve(values)).cells("s")) >= 4
    elif dag_id == SPEED:
        assert values["baseline_nights"] == 5
    elif dag_id == NIGHTLY:
        assert nightly_cells(values, "2026-11-21T02:00:00+00:00")
    else:
        config = parse_configuration({name: values[name] for name in Configuration.model_fields})
        assert config.rate == values["rate"]
