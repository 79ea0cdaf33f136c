"""A plain process submits to Spark as the Spark provider does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.running import Submission
from faultline.engines.spark.submission import SparkSubmission
from faultline.installation.airflow import spark_connections
from faultline.lifecycle.hooks import PlainHooks
from faultline.orchestration.hooks import AirflowHooks
from faultline.system.errors import InfrastructureError
from faultline.system.settings import ROOT, Settings

SETTINGS = Settings(ROOT, Path("/home"), Path("/results"))
TEXTS = st.text(st.characters(codec="ascii", exclude_categories=("Cc",)), min_size=1, max_size=20)
SUBMISSIONS = st.builds(
    SparkSubmission,
    command=st.lists(TEXTS, min_size=1, max_size=4).map(tuple),
    environment=st.just({}),
    restart_delay_s=st.just(0.0),
    max_restarts=st.just(0),
    name=TEXTS,
    settings=st.dictionaries(TEXTS.map("spark.{}".format), TEXTS, max_size=4),
    properties=st.just(Path("/home/spark.conf")),
    main_class=st.none() | st.just("com.example.Main"),
    spark_submit=st.none() | st.just("/opt/spark/bin/spark-submit"),
    master=st.none() | st.sampled_from(["spark://elsewhere:7077", "yarn", "local[2]"]),
)


@pytest.fixture(scope="module", autouse=True)
def connection() -> object:
    given = {key: value for key, value in spark_connections(SETTINGS)["spark_default"].items() if key != "extra"}
    extra = json.loads(str(spark_connections(SETTINGS)["spark_default"]["extra"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({**given, "extra": extra}))
        yield


@given(SUBMISSIONS)
def test_both_build_the_same_command(submission: SparkSubmission) -> None:
    assert PlainHooks(SETTINGS).command(submission) == AirflowHooks(SETTINGS, {}).command(submission)


def test_what_is_not_for_spark_is_run_as_it_is() -> None:
    submission = Submission(("sleep", "1"), {}, 0.0, 0)
    for hooks in (PlainHooks(SETTINGS), AirflowHooks(SETTINGS, {})):
        assert hooks.command(submission) == ["sleep", "1"]


def test_a_connection_that_is_no_spark_master_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    submission = SparkSubmission(("x.py",), {}, 0.0, 0, name="x", settings={}, properties=Path("/p"))
    with pytest.raises(InfrastructureError, match="spark_default"):
        AirflowHooks(SETTINGS, {}).command(replace(submission))
