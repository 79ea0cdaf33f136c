"""Objects of settings in a configuration: by name, as axes, in canonical form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.cells import Point, axes_of
from faultline.experiment.axes import parse_axes
from faultline.experiment.config import parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.named_settings import OBJECTS, folded, spread
from faultline.system.errors import ConfigError

ADAPTIVE = "spark_conf.spark.sql.adaptive.enabled"
NAMES = st.text("abc.", min_size=1).filter(lambda name: name.strip("."))


@given(st.dictionaries(st.sampled_from(OBJECTS), st.dictionaries(NAMES, st.text("xyz", min_size=1), min_size=1)))
def test_spreading_and_folding_are_each_others_inverse(objects: dict[str, Any]) -> None:
    config = {"rate": 1.0, **objects}
    assert folded(spread(config)) == config


def test_a_setting_is_the_same_however_it_is_written_down() -> None:
    whole = parse_configuration({"spark_conf": {"spark.sql.adaptive.enabled": False, "spark.b": 2}})
    named = parse_configuration({"spark_conf.spark.b": "2", ADAPTIVE: "false"})
    assert whole == named and whole.config_id == named.config_id
    assert whole.config_id != parse_configuration({}).config_id
    assert parse_configuration({"spark_conf": {}}) == parse_configuration({}), "nothing is none"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"spark_conf": {"spark.x": "1"}, "spark_conf.spark.x": "2"}, "spark_conf.spark.x: is given twice"),
        ({"spark_conf": '{"spark.x": 1}', "spark_conf.spark.y": "2"}, "spark_conf: give an object such as"),
        ({"spark_conf": {"spark.x": None}}, "spark_conf.spark.x: None is no value of a setting"),
        ({"spark_conf": {"spark.x": "a\nb"}}, "no value of a setting"),
        ({"spark_conf": {"spark.x": "y" * 3000}}, "longer than 2000 characters"),
        ({"spark_conf": "spark.x=1"}, "spark_conf: not JSON"),
        ({"sparkconf": {}}, "sparkconf: unknown parameter; did you mean spark_conf"),
        ({"topic_conf.retention.ms": 1}, "topic_conf.retention.ms: stays as it is, because records stay"),
        ({"topic_conf.compresion.type": "lz4"}, "no setting of a topic; did you mean compression.type"),
        ({"topic_conf.segment.ms": "1h"}, "topic_conf.segment.ms: '1h' is not a whole number"),
        ({"workload": "nexmark", "topic_conf.segment.ms": 1}, "topic_conf: nexmark makes its input without Kafka"),
    ],
)
def test_what_cannot_be_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_configuration(values)


def test_one_setting_is_an_axis() -> None:
    spec = MATRICES["sweep"]
    params = spec.resolve({"axes": parse_axes(f"{ADAPTIVE}=true, false; rate=100, 200"), "fault": "none"})
    found = spec.matrix(params).configurations()
    assert [(one.rate, (one.spark_conf or {})["spark.sql.adaptive.enabled"]) for one in found] == [
        (100, "true"), (200, "true"), (100, "false"), (200, "false"),
    ]  # fmt: skip
    axes = axes_of([Point(one.config_id, one.model_dump(mode="json"), ()) for one in found])
    assert [(axis.key, axis.name, axis.values) for axis in axes] == [
        ("rate", "rate (records/s)", (100.0, 200.0)), (ADAPTIVE, "spark.sql.adaptive.enabled", ("false", "true")),
    ]  # fmt: skip
