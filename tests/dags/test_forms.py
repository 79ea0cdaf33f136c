"""Each field of each trigger form against what the form shows of it, and against what Airflow does with a run's values.

The same values are typed into the real forms with --thorough (tests/system/test_forms.py).
"""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest
from airflow.sdk.exceptions import ParamValidationError

from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.night_file import NIGHTLY, SPEED
from faultline.orchestration.nights.nightly import night_cells
from tests.support.form_values import form_values, wrong_value

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
