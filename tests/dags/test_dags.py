"""Integrity, structure and forms of the DAGs, as Airflow reads them."""

from __future__ import annotations

import ast
import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError

from benchmarks.crash import STEPS
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import plan
from faultline.experiment.night_file import NIGHTLY, SPEED
from faultline.orchestration import airflow_api as notes_of
from faultline.orchestration import sweep
from faultline.orchestration.forms import SECTIONS, value_text
from faultline.orchestration.nights.nightly import night_cells
from faultline.orchestration.planning import order_of
from faultline.orchestration.run_experiment import retry_policy, state_of
from faultline.records.manifest import Manifests
from faultline.records.store import Store
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT, Settings
from tests.support.form_values import form_values, wrong_value
from tests.unit.sample_records import sample


def test_every_dag_file_is_read_without_error(bag: Any) -> None:
    assert bag.import_errors == {}
    assert set(bag.dags) == {"experiment", NIGHTLY, SPEED, *MATRICES}


def test_dag_files_hold_wiring_only() -> None:
    for path in (ROOT / "dags").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            assert isinstance(node, ast.Expr | ast.ImportFrom | ast.Assign), f"{path.name}:{node.lineno}"


def test_the_experiment_runs_its_steps_in_order_while_the_next_one_waits_for_its_turn(bag: Any) -> None:
    dag = bag.dags["experiment"]
    assert dag.max_active_runs == 2
    assert dag.schedule is None
    assert dag.is_paused_upon_creation is False
    assert sorted(dag.task_ids) == sorted([*STEPS, "require_accepted"])
    assert dag.get_task("require_accepted").trigger_rule == "all_skipped"
    assert dag.get_task("require_accepted").upstream_task_ids == {"provision_topics"}
    waits = "start_recorder"  # beside the making of topics: both must be done before a process of the run starts
    assert {"provision_topics", waits} <= dag.get_task("prepare").downstream_task_ids
    assert "start_generator" in dag.get_task("provision_topics").downstream_task_ids
    chain = [waits, *STEPS[STEPS.index(waits) + 1 :]]
    for before, after in zip(chain, chain[1:], strict=False):
        assert after in dag.get_task(before).downstream_task_ids


def test_the_teardown_is_a_real_one_with_prepare_as_its_setup(bag: Any) -> None:
    dag = bag.dags["experiment"]
    assert dag.get_task("prepare").is_setup
    teardown = dag.get_task("teardown")
    assert teardown.is_teardown
    assert "prepare" in teardown.upstream_task_ids


def test_steps_are_never_retried_but_harvest_and_judge_are(bag: Any) -> None:
    dag = bag.dags["experiment"]
    retries = {task_id: dag.get_task(task_id).retries for task_id in STEPS}
    assert {task_id for task_id, number in retries.items() if number} == {"harvest", "judge"}


def test_the_form_has_every_parameter_once_with_its_default_and_help(bag: Any) -> None:
    params = bag.dags["experiment"].params
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(Configuration.model_fields)
    for name, field in Configuration.model_fields.items():
        param = params.get_param(name)
        assert param.value == (None if name == "duration_s" else field.default)
        assert param.description and param.schema["section"] in SECTIONS


def test_an_untouched_form_is_the_default_configuration(bag: Any) -> None:
    for dag_id in bag.dags:
        bag.dags[dag_id].params.validate()
    order = order_of(bag.dags["experiment"].params.dump())
    assert order.config == parse_configuration({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate", 0),
        ("rate", -5),
        ("rate", 2e9),
        ("workload", "wordcount"),
        ("commit_mode", "exactly-once"),
        ("partitions", 2.5),
        ("state_touch", 1.5),
        ("build", "two words"),
        ("repetition", -1),
    ],
)
def test_a_wrong_value_in_the_form_is_refused(bag: Any, name: str, value: object) -> None:
    param = bag.dags["experiment"].params.get_param(name)
    with pytest.raises(ParamValidationError):
        param.resolve(value)


@pytest.mark.parametrize("dag_id", MATRICES)
def test_a_matrix_plans_measures_and_aggregates(bag: Any, dag_id: str) -> None:
    dag = bag.dags[dag_id]
    end = dag.get_task("require_success")
    assert dag.leaves == [end] and end.trigger_rule == "one_failed", "the run fails with any of its tasks"
    after = "search" if MATRICES[dag_id].search else "aggregate"
    assert dag.get_task("plan").downstream_task_ids == {"run_experiment", end.task_id} | ({after} - {"aggregate"})
    assert dag.get_task("run_experiment").downstream_task_ids == {after, end.task_id}
    assert dag.get_task("aggregate").downstream_task_ids == {end.task_id}
    if after == "search":
        assert dag.get_task("search").downstream_task_ids == {"aggregate", end.task_id}
        assert dag.get_task("search").trigger_rule == "all_done", "a sweep that finds nothing missing may still search"
    assert dag.get_task("aggregate").trigger_rule == "all_done"
    mapped = dag.get_task("run_experiment")
    assert mapped.is_mapped
    assert mapped.max_active_tis_per_dagrun == 2
    assert MATRICES[dag_id].text in dag.doc_md


@pytest.mark.parametrize("dag_id", MATRICES)
@pytest.mark.parametrize("bad", [[], "1, 1", [1, 1], "2..1", "1..2 x1"])
def test_a_wrong_axis_is_refused(bag: Any, dag_id: str, bad: object) -> None:
    for axis in MATRICES[dag_id].axes:
        given = bag.dags[dag_id].params.dump() | {axis: bad}
        with pytest.raises(ConfigError, match=f"^{axis}: "):
            MATRICES[dag_id].resolve(given)


@pytest.mark.parametrize("dag_id", MATRICES)
def test_the_form_is_empty_and_says_what_each_preset_fills_in(bag: Any, dag_id: str) -> None:
    params, spec = bag.dags[dag_id].params, MATRICES[dag_id]
    shown = params.dump()
    assert all(shown[name] is None for name in (*Configuration.model_fields, "axes", "repetitions", "controls"))
    assert spec.matrix(spec.resolve(shown)).cells("s") == spec.preset_matrix().cells("s")
    help_of_presets = params.get_param("preset").schema["description_md"]
    for preset in spec.presets:
        assert f"| `{preset}` |" in help_of_presets
        for name, value in spec.values(preset).items():
            said = params.get_param(name).description
            assert preset in said and (name in spec.axes or value_text(value) in said), (name, said)
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


def test_a_question_plans_blocks_up_to_its_budget_and_a_wrong_one_plans_nothing(
    bag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task itself."""
    settings, notes = Settings(tmp_path, tmp_path / "home", tmp_path / "results"), []
    monkeypatch.setattr(sweep, "load_settings", lambda: settings)
    monkeypatch.setattr(notes_of, "write_note", lambda *said: notes.append(said[-1]))
    dag = bag.dags["input_rate"]
    run = SimpleNamespace(conf={})
    context = {"dag": dag, "dag_run": run, "run_id": "manual__2026-11-21T06:40:30+00:00"}
    context["params"] = params = {**dag.params.dump(), "build": "b1"}
    monkeypatch.setattr(sweep, "get_current_context", lambda: context)
    params["decide"] = asked = {"figure": "cpu_cores.total", "along": "rate", "smallest": 0.1, "experiments": 32}
    planned = sweep.plan.function()
    repetitions = [one["conf"]["repetition"] for one in planned]
    assert repetitions == sorted(repetitions) and len(planned) == 39, "block after block, and what early ones may leave"
    orders = {tuple(one["conf"]["rate"] for one in planned[3 * block : 3 * block + 3]) for block in range(10)}
    assert len(orders) > 1 and all(set(order) == {100.0, 500.0, 2500.0} for order in orders)
    assert len({one["cell"] for one in planned}) == len(planned), "each has a name of its own"
    assert "rate 2,500 records/s, control, r0" in [one["cell"] for one in planned]
    assert "decide" not in planned[0]["conf"], "it is the sweep's, not the experiment's"
    kept = Manifests(settings.results).read("20261121T064030")
    assert kept is not None and kept.decide is not None and kept.decide.comparisons == 2 and len(kept.cells) == 39
    for wrong, words in (
        ({"figure": "cpu"}, "decide.figure: 'cpu' is no figure that can be decided"),
        ({"along": "state_mb"}, "decide.along: 'state_mb' is no axis of this sweep"),
        ({"experiments": 8}, "decide.experiments: 8 are too few to decide anything: .* give 15 or more"),
    ):
        params["decide"] = {**asked, **wrong}
        with pytest.raises(AirflowFailException, match=words):
            sweep.plan.function()
        assert notes[-1].startswith("**Nothing was planned.** decide.")


def test_measuring_anew_counts_nothing_from_before_and_a_resumed_sweep_keeps_to_that(
    bag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(tmp_path, tmp_path / "home", tmp_path / "results")
    monkeypatch.setattr(sweep, "load_settings", lambda: settings)
    monkeypatch.setattr(notes_of, "write_note", lambda *said: None)
    dag = bag.dags["sweep"]
    context = {"dag": dag, "dag_run": SimpleNamespace(conf={})}
    monkeypatch.setattr(sweep, "get_current_context", lambda: context)

    def planned(run: str, **form: Any) -> list[dict[str, Any]]:
        context.update(run_id=run, params={**dag.params.dump(), "build": "b1", **form})
        return sweep.plan.function()

    asked = {"axes": "seed=1, 2", "fault": "none", "repetitions": 1}
    one, other = planned("first", **asked)
    stored = sample(**{key: one["conf"][key] for key in Configuration.model_fields}, attempt="20261121T061500Z-00000a")
    before = stored.model_copy(update={
        "series": "b1", "sweep_id": "first", "repetition": 0, "measured_at": "2020-01-01T00:00:00.000+00:00",
    })  # fmt: skip
    Store(settings.results).write(before)
    assert [each["conf"]["seed"] for each in planned("second", **asked)] == [other["conf"]["seed"]]
    assert len(anew := planned("third", **asked, only_missing=False)) == 2
    resumed = planned("fourth", resume="third")
    assert len(resumed) == 2 and not any(each["conf"]["only_missing"] for each in [*anew, *resumed])
    plans = Manifests(settings.results)
    (since,) = {getattr(plans.read(name), "since", None) for name in ("third", "fourth")}
    assert since is not None and since > before.measured_at
    after = {"attempt": "20261121T061500Z-00000b", "sweep_id": "third", "measured_at": since}
    Store(settings.results).write(before.model_copy(update=after))
    assert [each["conf"]["seed"] for each in planned("fifth", resume="third")] == [other["conf"]["seed"]]


def test_wrong_input_fails_at_once_and_what_broke_is_tried_again() -> None:
    from airflow.sdk import RetryAction

    from faultline.system.errors import InfrastructureError, InvalidMeasurement

    policy = retry_policy()
    actions = {
        kind: policy.evaluate(kind("x"), try_number=1, max_tries=9).action
        for kind in (ConfigError, InfrastructureError, InvalidMeasurement)
    }
    assert actions == {
        ConfigError: RetryAction.FAIL,
        InfrastructureError: RetryAction.RETRY,
        InvalidMeasurement: RetryAction.RETRY,
    }


def test_the_state_of_another_run_is_told_by_its_value() -> None:
    """The SDK answers with an enumeration whose text is not its value: a stopped sweep went unnoticed."""
    from airflow.sdk.api.datamodels._generated import DagRunState

    class Instance:
        def get_dagrun_state(self, dag_id: str, run_id: str) -> object:
            return DagRunState.FAILED

    assert state_of({"ti": Instance()}, "a", "r") == "failed"


FORMS = ["experiment", NIGHTLY, SPEED, *MATRICES]
# What the form chooses its widgets by; of a field that may be empty it looks at the other type.
WIDGETS = {"boolean", "array", "object", "string", "number", "integer"}


def refused(schema: dict[str, Any], value: Any) -> bool:
    return not jsonschema.Draft7Validator(schema).is_valid(value)


def triggered(dag: Any, conf: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a run that was triggered with `conf`, as Airflow makes them."""
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
        # Of several types the form takes the first one, where there are examples: a line of text.
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
        assert night_cells(values, "2026-11-21T02:00:00+00:00")
    else:
        config = parse_configuration({name: values[name] for name in Configuration.model_fields})
        assert config.rate == values["rate"]
