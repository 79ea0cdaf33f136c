"""Bundles, static sites, and `judge` on bundles and on the store."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from faultline.cli import main as cli
from faultline.cli.judge_command import judge_sweep
from faultline.cli.site_writer import MARK, PREFIX, file_of, publish
from faultline.records.bundle import Bundle, read_bundle, sha256
from faultline.records.judge.judge import judge
from faultline.records.judge.rejudge import SUPERSEDED
from faultline.records.record import SCHEMA, Record
from faultline.records.store import Store
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT, Settings
from tests.support.attempts import add_plan
from tests.unit.nightly_records import nightly_records
from tests.unit.pages_store import put
from tests.unit.pages_store import record as stored
from tests.unit.sample_records import RECOVERED
from tests.unit.synthetic import Scenario, Synthetic


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


@pytest.fixture
def record(results: Path) -> Record:
    """Record of an attempt with raw files, in a matrix with a page."""
    folder = Synthetic(Scenario()).write(results)
    record = judge(folder).model_copy(update={"matrix": "state_size_x_checkpoint_interval"})
    Store(results).write(record)
    return record


def run(*arguments: str) -> str:
    done = CliRunner().invoke(cli.app, ["results", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def bundled(path: Path) -> Bundle:
    """Bundle of the store."""
    run("--bundle", str(path))
    return read_bundle(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.tar.xz"


def test_a_bundle_reproduces_page_and_records(record: Record, path: Path, tmp_path: Path) -> None:
    assert "1 attempts" in run("--bundle", str(path))
    bundle = read_bundle(path)
    assert bundle.records() == [record] and f"attempts/{record.attempt}/attempt.json" in bundle.files
    here, there = (tmp_path / name / "x.md" for name in ("here", "there"))
    run("--page", str(here))
    run("--from", str(path), "--page", str(there))
    (line,) = set(there.read_text().splitlines()) - set(here.read_text().splitlines())
    link = f"[x.tar.xz](../x.tar.xz), SHA-256 `{sha256(path.read_bytes())}`"
    assert line == f"- Records with raw files: {link}"
    pictures = [sorted((one.parent / "images").iterdir()) for one in (here, there)]
    assert pictures[0] and [one.read_text() for one in pictures[0]] == [one.read_text() for one in pictures[1]]


def test_rejudging_a_bundle_changes_nothing(record: Record, path: Path) -> None:
    bundled(path)
    before = path.read_bytes()
    (row,) = judge_sweep(str(path), (0.25,), write=False).rows()
    found = row["within"]["0.25"]
    assert found["macro_s"] == pytest.approx(record.metrics.recovery.macro_s, abs=0.02) and row["problem"] is None
    with pytest.raises(ConfigError, match="^--write: "):
        judge_sweep(str(path), (), write=True)
    assert path.read_bytes() == before


def test_a_bundle_holds_no_local_path(record: Record, results: Path, path: Path) -> None:
    journal = results / "attempts" / record.attempt / "services.jsonl"
    argv = [f"{results}/x", f"{results}-not", f"{Path.home()}/y", f"/mnt{results}"]
    journal.write_text(json.dumps({"event": "started", "argv": argv}) + "\n")
    bundle, name = bundled(path), f"attempts/{record.attempt}/services.jsonl"
    kept = json.loads(bundle.files[name])["argv"]
    assert kept == ["/faultline/results/x", argv[1], "/home/user/y", argv[3]], "others only begin or end alike"
    listed = bundle.listing.files[name]
    assert (listed.original, listed.how) == (sha256(journal.read_bytes()), "paths replaced")


def test_an_attempt_without_raw_files_is_bundled_by_its_record(record: Record, results: Path, path: Path) -> None:
    (results / "attempts" / record.attempt / "attempt.json").unlink()
    assert record.attempt in run("--bundle", str(path)).split("record only:")[1]
    bundle = read_bundle(path)
    assert bundle.records() == [record] and not any(name.startswith("attempts/") for name in bundle.files)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bundle", "x.zip"], "--bundle: got x.zip"),
        (["--bundle", "x.tar.xz", "--status", "failed"], "--bundle: no record matches"),
        (["--from", "{saved}", "--bundle", "x.tar.xz"], "--bundle: got --from"),
    ],
)
def test_invalid_bundle_options_are_refused(arguments: list[str], message: str, record: Record, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(f"[{record.as_json()}]")
    with pytest.raises(ConfigError, match=message):
        run(*(one.format(saved=saved) for one in arguments))
    assert not Path("x.tar.xz").exists()


def test_paths_of_the_measuring_checkout_are_replaced(record: Record, results: Path, path: Path) -> None:
    description = results / "attempts" / record.attempt / "attempt.json"
    measured = {"home": "/x/y/.home", "programs": "/x/y/spark_jobs", "z": "/x/y/z"}
    description.write_text(json.dumps({**json.loads(description.read_text()), **measured}))
    add_plan(description.parent)
    kept = json.loads(bundled(path).files[f"attempts/{record.attempt}/attempt.json"])
    values = {"home": "/faultline/.faultline", "programs": "/faultline/spark_jobs", "z": "/faultline/z"}
    assert {name: kept[name] for name in measured} == values


@pytest.fixture
def old(results: Path) -> Record:
    """Record by older rules: not recovered, although its raw files show a recovery."""
    record = judge(Synthetic(Scenario()).write(results))
    part = record.metrics.recovery.model_copy(update={"recovered": False, "macro_s": None, "censored_at_s": 34.0})
    metrics = record.metrics.model_copy(update={"recovery": part, "recoveries": [part], "placebo": None})
    before = record.model_copy(update={"metrics": metrics})
    path = Store(results).path(before)
    path.parent.mkdir(parents=True)
    path.write_text(before.as_json())
    return before


def test_judge_without_write_changes_nothing(old: Record, results: Path) -> None:
    path = Store(results).path(old)
    judged = judge_sweep("s1", (0.1, 0.5), write=False)
    (row,) = judged.rows()
    assert row["before"]["schema"] == SCHEMA and row["before"]["macro_s"] is None
    assert list(row["within"]) == ["0.1", "0.5"]
    tight, loose = row["within"]["0.1"], row["within"]["0.5"]
    assert tight["recovered"] and loose["recovered"]
    assert tight["latency_limit_ms"] < loose["latency_limit_ms"] and tight["lag_limit"] < loose["lag_limit"]
    assert path.read_text() == old.as_json() and not (results / SUPERSEDED).exists()


def test_judge_with_write_keeps_the_superseded_record(
    old: Record, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = judge_sweep(old.attempt, (), write=True)
    judged.print()
    shown = capsys.readouterr().out
    assert "> 34.0" in shown and "1 records replaced" in shown
    now = Record.model_validate_json(Store(results).path(old).read_text())
    assert now.schema_ == SCHEMA and now.metrics.recovery.recovered
    moved = results / SUPERSEDED / old.config_id / f"{old.attempt}.schema-{SCHEMA}.json"
    assert moved.read_text() == old.as_json()
    # A second call changes nothing.
    (row,) = judge_sweep("s1", (), write=True).rows()
    assert row["moved_to"] is None and list(moved.parent.iterdir()) == [moved]


@pytest.mark.parametrize("broken", [False, True], ids=["gone", "broken"])
def test_a_record_without_complete_raw_files_is_kept(old: Record, results: Path, broken: bool) -> None:
    if broken:
        (results / "attempts" / old.attempt / "gate.json").write_text("{")
    else:
        shutil.rmtree(results / "attempts")
    (row,) = judge_sweep("s1", (), write=True).rows()
    assert ("gate.json" in row["problem"]) if broken else (row["problem"], row["within"]) == (
        "its raw files are gone", {},
    )  # fmt: skip
    assert Store(results).path(old).read_text() == old.as_json()


@pytest.mark.parametrize("share", [0.0, -1.0, 10.1, float("nan"), float("inf")])
def test_a_share_out_of_range_is_refused(old: Record, share: float) -> None:
    with pytest.raises(ConfigError, match="--within"):
        judge_sweep("s1", (share,), write=False)


def test_an_unknown_sweep_is_refused_with_a_suggestion(old: Record) -> None:
    with pytest.raises(ConfigError, match="s2: .*did you mean s1"):
        judge_sweep("s2", (), write=False)


@pytest.fixture
def published(tmp_path: Path) -> Settings:
    made = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    put(
        made.results,
        stored("a1", recovery=RECOVERED),
        stored("a2", sweep="s2", matrix="m 2/ü", state_mb=8.0),
        stored("a3", sweep=None, matrix=None),
        *nightly_records(1, 100),
    )
    return made


def test_every_link_of_the_site_leads_to_a_file(published: Settings, tmp_path: Path) -> None:
    lines: list[str] = []
    first = publish(published, tmp_path / "site", lines.append)
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert first in pages and len(pages) >= 8 and lines[0].startswith(f"{len(pages)} pages in ")
    for page in pages:
        text = page.read_text()
        assert PREFIX not in text and "data-refresh" not in text
        for address in re.findall(r"""(?:href|src)=["'](.*?)["']""", text):
            named = unquote(unescape(address).partition("#")[0])
            if named and not named.startswith("data:"):
                assert (page.parent / named).resolve().is_file(), (page, address)
    names = {str(page.relative_to(tmp_path / "site")) for page in pages}
    assert {"index.html", "sweeps/s1.html", "matrices/m.html", "nights.html", "unswept.html"} <= names
    assert (tmp_path / "site" / "static" / "plotly.min.js").is_file()


def test_publish_replaces_only_a_site(published: Settings, tmp_path: Path) -> None:
    target = tmp_path / "site"
    publish(published, target, lambda text: None)
    (target / "old.html").write_text("x")
    publish(published, target, lambda text: None)
    assert not (target / "old.html").exists() and (target / MARK).exists()
    assert {path.name for path in tmp_path.iterdir()} == {"home", "results", "site"}, "nothing half-made is left"
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="not empty"):
        publish(published, mine, lambda text: None)
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]
    with pytest.raises(ConfigError, match="got a file"):
        publish(published, mine / "thesis.txt", lambda text: None)


@given(st.lists(st.text(min_size=1, max_size=30), min_size=2, max_size=2, unique=True))
def test_addresses_map_to_distinct_files_inside_the_folder(names: list[str]) -> None:
    from urllib.parse import quote

    one, other = (file_of(f"{PREFIX}/sweeps/{quote(name, safe='')}") for name in names)
    assert one != other
    for path in (one, other):
        assert path.endswith(".html") and not path.startswith("/") and ".." not in path.split("/")
