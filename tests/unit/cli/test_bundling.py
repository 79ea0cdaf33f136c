"""From a results folder to a bundle, and from the bundle to the same records and page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from faultline.cli import main as cli
from faultline.cli.judging import judge_sweep
from faultline.records.bundle import read_bundle, sha256
from faultline.records.judge.judge import judge
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.system.errors import ConfigError
from tests.unit.synthetic import Scenario, Synthetic


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


@pytest.fixture
def record(results: Path) -> Record:
    """Of an attempt with raw files, in a matrix that has a page."""
    folder = Synthetic(Scenario()).write(results)
    record = judge(folder).model_copy(update={"matrix": "state_size_x_checkpoint_interval"})
    Store(results).write(record)
    return record


def run(*arguments: str) -> str:
    done = CliRunner().invoke(cli.app, ["results", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def test_page_and_records_are_made_again_from_it(record: Record, results: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.xz"
    assert "1 attempts" in run("--bundle", str(path))
    bundle = read_bundle(path)
    assert bundle.records() == [record] and bundle.attempts() == [record.attempt]
    run("--page", str(tmp_path / "here" / "x.md"))
    run("--from", str(path), "--page", str(tmp_path / "there" / "x.md"))
    here, there = (tmp_path / name / "x.md" for name in ("here", "there"))
    (line,) = set(there.read_text().splitlines()) - set(here.read_text().splitlines())
    told = f"[x.tar.xz](../x.tar.xz), SHA-256 `{sha256(path.read_bytes())}`"
    assert line == f"- Records, and the raw files that they were made of: {told}"
    pictures = [sorted((one.parent / "images").iterdir()) for one in (here, there)]
    assert pictures[0] and [one.read_text() for one in pictures[0]] == [one.read_text() for one in pictures[1]]


def test_it_is_judged_again_and_stays_as_it_is(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.xz"
    run("--bundle", str(path))
    before = path.read_bytes()
    (row,) = judge_sweep(str(path), (0.25,), again=False).rows()
    found = row["within"]["0.25"]
    assert found["macro_s"] == pytest.approx(record.metrics.recovery.macro_s, abs=0.02) and row["problem"] is None
    with pytest.raises(ConfigError, match="--again: a bundle is not changed"):
        judge_sweep(str(path), (), again=True)
    assert path.read_bytes() == before


def test_no_path_of_the_machine_is_in_it(record: Record, results: Path, tmp_path: Path) -> None:
    journal = results / "attempts" / record.attempt / "services.jsonl"
    journal.write_text(
        f'{{"event": "started", "argv": ["{results}/x", "{results}-not", "{Path.home()}/y", "/mnt{results}"]}}\n'
    )
    path = tmp_path / "x.tar.xz"
    run("--bundle", str(path))
    bundle = read_bundle(path)
    name = f"attempts/{record.attempt}/services.jsonl"
    text = bundle.files[name].decode()
    assert '"/faultline/results/x"' in text and '"/home/user/y"' in text and f'"{results}-not"' in text
    assert f'"/mnt{results}"' in text, "another folder that ends alike"
    assert bundle.listing.files[name].original == sha256(journal.read_bytes())
    assert bundle.listing.files[name].how == "paths replaced"


def test_an_attempt_without_raw_files_is_there_with_its_record(record: Record, results: Path, tmp_path: Path) -> None:
    (results / "attempts" / record.attempt / "attempt.json").unlink()
    path = tmp_path / "x.tar.xz"
    assert record.attempt in run("--bundle", str(path)).split("only the record, of")[1]
    assert read_bundle(path).records() == [record] and read_bundle(path).attempts() == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--bundle", "x.zip"], "--bundle x.zip: is no name of a bundle; let it end in .tar.xz"),
        (["--bundle", "x.tar.xz", "--status", "failed"], "--bundle: no record matches"),
        (["--from", "{saved}", "--bundle", "x.tar.xz"], "--bundle: is made of the store"),
    ],
)
def test_what_makes_no_bundle_is_refused(arguments: list[str], told: str, record: Record, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(f"[{record.as_json()}]")
    with pytest.raises(ConfigError, match=told):
        run(*(one.format(saved=saved) for one in arguments))
    assert not Path("x.tar.xz").exists()


def test_the_paths_of_the_checkout_that_measured_are_replaced_whoever_makes_the_bundle(
    record: Record, results: Path, tmp_path: Path
) -> None:
    description = results / "attempts" / record.attempt / "attempt.json"
    measured = {
        **json.loads(description.read_text()),
        "home": "/x/y/.home",
        "programs": "/x/y/spark_jobs",
        "z": "/x/y/z",
    }
    description.write_text(json.dumps(measured))
    path = tmp_path / "x.tar.xz"
    run("--bundle", str(path))
    kept = json.loads(read_bundle(path).files[f"attempts/{record.attempt}/attempt.json"])
    assert [kept[name] for name in ("home", "programs", "z")] == [
        "/faultline/.faultline", "/faultline/spark_jobs", "/faultline/z",
    ]  # fmt: skip
