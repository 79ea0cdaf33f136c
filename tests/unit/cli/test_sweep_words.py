"""A sweep as the command line takes it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from faultline.cli.sweep_words import Wanted, wanted_of
from faultline.experiment.config import Configuration
from faultline.experiment.matrices import MATRICES
from faultline.system.errors import ConfigError


def read_by_the_form(wanted: Wanted) -> Any:
    """The cells as the DAG makes them of what was sent, where everything else is empty."""
    return wanted.spec.matrix(wanted.spec.resolve({**dict.fromkeys(Configuration.model_fields), **wanted.form}))


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize(("words", "seeds"), [((), {1}), (("repetitions=2", "seed=9"), {9}), (("seed=[1,2]",), {1, 2})])
def test_what_is_triggered_is_what_is_said(matrix: str, words: tuple[str, ...], seeds: set[int]) -> None:
    wanted = wanted_of([matrix, "preset=smoke", *words])
    assert read_by_the_form(wanted).cells("s") == wanted.matrix.cells("s")
    assert {config.seed for config in wanted.matrix.configurations()} == seeds


def test_an_axis_of_the_matrix_needs_no_brackets_and_any_other_has_them() -> None:
    wanted = wanted_of(["recovery", "checkpoint_interval_s=2,10", "fault=none", "rate=[100..400x2]", "state_mb=2"])
    assert wanted.form == {
        "checkpoint_interval_s": [2, 10], "fault": ["none"], "axes": {"rate": [100, 200, 400]}, "state_mb": 2.0
    }  # fmt: skip
    points = {(one.checkpoint_interval_s, one.rate, one.state_mb) for one in wanted.matrix.configurations()}
    assert points == {(i, r, 2.0) for i, r in itertools.product((2.0, 10.0), (100.0, 200.0, 400.0))}
    assert wanted.text == [
        "fault: none", "checkpoint_interval_s: 2, 10", "rate: 100, 200, 400", "each configuration 5 times"
    ]  # fmt: skip


def test_a_sweep_needs_no_matrix() -> None:
    wanted = wanted_of(["workload=pi", "iterations=[100,1000]", "fault=none"])
    assert wanted.spec.name == "sweep" and [one.iterations for one in wanted.matrix.configurations()] == [100, 1000]
    assert wanted.form == {"axes": {"iterations": [100, 1000]}, "workload": "pi", "fault": "none"}


def test_a_job_is_of_its_workload_alone_where_others_stand_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "JOB = {'arguments': {'a': 1}}\ndef query(records, config):\n    return records\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["workload=[word_count,query]", "job=mine.py", "arguments.a=2", "fault=none", "state_mb=0"]
    wanted = wanted_of(words)
    assert wanted.form["job"] == str(tmp_path / "mine.py") and wanted.form["arguments"] == {"a": "2"}
    assert [(one.workload, one.job, one.arguments) for one in wanted.matrix.configurations()] == [
        ("word_count", None, None), ("query", str(tmp_path / "mine.py"), {"a": "2"})
    ]  # fmt: skip
    assert wanted.text == [
        "workload: word_count, query", "job: of query alone", "arguments: of query alone",
        "each configuration 5 times",
    ]  # fmt: skip
    assert read_by_the_form(wanted).cells("s") == wanted.matrix.cells("s")
    # Its default is no nothing, and word_count has that, too.
    (tmp_path / "p.py").touch()
    program = wanted_of(["workload=[word_count,program]", "application=p.py", "pass_header=true", "fault=none"])
    assert program.form["pass_header"] is True
    with pytest.raises(ConfigError, match="job: only query has it; leave it empty"):
        wanted_of(["workload=[word_count,pi]", "job=mine.py"])


def test_a_relative_path_is_meant_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("some words of mine\n" * 100)
    monkeypatch.chdir(tmp_path)
    assert wanted_of(["input_rate", "workload=word_count", "corpus=mine"]).form["corpus"] == str(tmp_path / "mine")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["recovry"], "recovry: no such matrix; did you mean recovery?"),
        (["word_count"], "word_count: no such matrix; one experiment of it is `./faultline run word_count`"),
        (["nightly_regression"], "nightly_regression: a night is no sweep"),
        (["recovery", "smoke"], "smoke: give KEY=VALUE, such as preset=smoke"),
        (["recovery", "preset=smok"], "preset: 'smok' is not known; did you mean smoke?"),
        (["recovery", "rat=5"], "rat: unknown parameter; did you mean rate?"),
        (["recovery", "rate=0"], "rate: '0' is refused"),
        (["recovery", "fault="], "fault: is empty; give a value"),
        (["recovery", "fault=executer"], "fault: 'executer' is not known; did you mean executor?"),
        (["recovery", "rate=[]"], "rate: the axis is empty"),
        (["recovery", "repetitions=-4"], "repetitions: '-4' is refused; use a whole number from 1 to 100"),
        (["recovery", "decide=5"], "decide: '5' is no JSON object"),
        (["recovery", "series=two words"], "series: 'two words' is not a label"),
        (["executor_cores", "executors=40"], "executor_memory_mb: 20 executors of 1024 MiB do not fit a worker"),
    ],
)
def test_bad_words_are_refused_by_name(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        wanted_of(words)
    assert str(refused.value).startswith(said)
