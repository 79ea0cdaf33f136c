"""HTML report: complete, self-contained, and safe for untrusted texts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from faultline import __version__
from faultline.records.format import WORDS
from faultline.records.judge.judge import judge
from faultline.records.record import AuditPart, Record
from faultline.reports.html import figures_json
from faultline.reports.report import render, write_report
from faultline.reports.views.runs import table_rows, used_columns
from tests.unit.sample_records import CENSORED, RECOVERED, matrix, sample
from tests.unit.synthetic import Scenario, Synthetic

EVIL = "</script><script>alert(1)</script><img src=https://evil.invalid/x onerror=alert(2)>\"'&"


class Page(HTMLParser):
    """Parsed page: elements, text, table cells and scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.cells: list[list[str]] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "script":
            self.scripts.append("")
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th") and self.cells:
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "script" in self._open:
            self.scripts[-1] += data
        elif "style" not in self._open:
            self.text += data
            if self.cells and self.cells[-1] and ("td" in self._open or "th" in self._open):
                self.cells[-1][-1] += data.strip()

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page(records: list[Record], results: Path, **named: Any) -> Page:
    return Page(render(records, results, title=named.pop("title", "T"), **named))


def judged(folder: Path, scenario: Scenario) -> Record:
    """Return the record of a judged synthetic attempt under `folder`/attempts."""
    directory = Synthetic(scenario).write(folder)
    target = folder / "attempts" / directory.name
    if directory != target:
        target.parent.mkdir(exist_ok=True)
        directory.rename(target)
    return judge(target)


def test_the_table_equals_that_of_the_terminal(tmp_path: Path) -> None:
    records = [*matrix(), sample(status="invalid", reasons=["schedule-lag: p99 53 ms > 50 ms"], attempt="z")]
    found = page(records, tmp_path)
    keys = [column.key for column in used_columns(table_rows(records))]
    for row in table_rows(records):
        assert [row[key] for key in keys] in found.cells
    assert ["", "schedule-lag: p99 53 ms > 50 ms"] in found.cells
    assert "6 experiments: 5 valid, 1 invalid." in found.text


def test_exactly_once_requires_equal_counts_and_checksums(tmp_path: Path) -> None:
    def audited(workload: str = "word_count", **numbers: int | None) -> Record:
        record = sample(workload=workload, state_mb=0, fault="none")
        audit = AuditPart(expected=9, lost=0, overcounted=0, unexpected=0, reemitted=0, unknown=0)
        update = {"audit": audit.model_copy(update=numbers)}
        return record.model_copy(update={"metrics": record.metrics.model_copy(update=update)})

    once = "every tuple was counted exactly once"
    assert once in page([audited(checksum_mismatches=0), audited("pi")], tmp_path).text
    for others in ([audited()], [audited(checksum_mismatches=0), audited()], [audited("stock_join")]):
        text = page(others, tmp_path).text
        assert "no lost, overcounted or unexpected tuples." in text and once not in text
    text = page([audited(checksum_mismatches=0), audited(checksum_mismatches=2)], tmp_path).text
    assert "found 0 lost, 0 overcounted, 0 unexpected, 2 checksum mismatches" in text and once not in text


def test_head_and_sections(tmp_path: Path) -> None:
    found = page(matrix(), tmp_path, title="Word count under a kill")
    config_id = sample(state_mb=8.0, checkpoint_interval_s=5.0).config_id
    for text in (
        "Word count under a kill", "bench-1: 2 cores, 8 GB of memory", "Spark 4.2.0 · Kafka 4.3.1 · Java 17.0.15",
        "2026-11-21 06:15 UTC", f"Faultline {__version__}",
        "5. State 8 MB, interval 5 s, executor kill", f"records/{config_id}/a-8-5.json", "spark.executor.cores",
        "executor_memory_mb", "All validity rules passed.",
    ):  # fmt: skip
        assert text in found.text, text
    assert [name for name, _ in found.elements].count("article") == 5
    assert "61,725 overcounted" in found.text, "the lead reports audit findings"
    levels = [int(name[1]) for name, _ in found.elements if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False)), "no level skipped"
    assert all("scope" in attributes for attributes in found.all("th"))


def test_a_measured_attempt_has_its_figure_and_its_timeline(tmp_path: Path) -> None:
    record = judged(tmp_path, Scenario())
    found = page([record], tmp_path)
    figures = json.loads(found.scripts[0])
    assert {"time-1", "parts"} == set(figures)
    assert len({trace["yaxis"] for trace in figures["time-1"]["data"]}) == 5
    assert "template" not in figures["time-1"]["layout"]
    detected = "recorder.jsonl: removeTime of executor 0 (REST)"
    assert ["28.549", "+0.350", f"t2{WORDS['t2']}", detected] in found.cells
    assert ["28.199", "0.000", f"t0{WORDS['t0']}", "conductor.jsonl: signal delivered"] in found.cells
    assert len(found.scripts[0]) < 100_000, "numbers are rounded, data stays small"


def test_the_throughput_in_words_is_not_compared_with_the_offered_records(tmp_path: Path) -> None:
    chain = sample(workload="topology", rate=200.0)
    assert "words/s" in page([chain], tmp_path).text and "of 200 records/s offered" in page([chain], tmp_path).text
    assert "words/s" not in page([sample(rate=200.0)], tmp_path).text


def test_several_faults_have_rows_and_named_events(tmp_path: Path) -> None:
    impact = {"dip_depth": 0.874, "silence_s": 7.8123, "lag_area_record_s": 12_345.6}
    instants = [("gate", 0.0, "gate.json"), ("t0", 41.0, "conductor.jsonl"), ("t0#2", 61.0, "conductor.jsonl"),
                ("driver_restarted", 43.5, "supervisor.jsonl"), ("service_up#2", 64.25, "services.jsonl")]  # fmt: skip
    timeline = {name: (at_s, source) for name, at_s, source in instants}
    first = RECOVERED | impact
    found = page([sample(recovery=first, recoveries=[first, CENSORED], timeline=timeline)], tmp_path)
    assert ["1", "0.15", "5.09", "1.01", "1.59", "4.00", "13.8", "87 %", "7.81", "12,346"] in found.cells
    assert ["2", "0.15", "5.09", "1.01", "1.59", "—", "> 33.9", "—", "—", "—"] in found.cells
    assert ["43.500", "+2.500", WORDS["driver_restarted"], "supervisor.jsonl"] in found.cells
    assert ["64.250", "+3.250", WORDS["service_up"], "services.jsonl"] in found.cells
    assert "Longest silence7.81 sdip 87 %" in found.text.replace("\n", "")
    assert "Recovery from each fault" not in page([sample(recovery=RECOVERED, recoveries=[RECOVERED])], tmp_path).text


def test_the_report_needs_no_network(tmp_path: Path) -> None:
    html = render([judged(tmp_path, Scenario())], tmp_path, title="T")
    found = Page(html)
    for name, attributes in found.elements:
        for key in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(key)
            assert value is None or value.startswith(("#", "data:")), (name, key, value)
    assert html.count("plotly.js v") == 1
    own = html.replace(get_plotlyjs(), "")
    assert not re.search(r"https?://|@import|url\(", own)
    assert len(own) < 200_000


def test_the_policy_lets_only_the_two_scripts_run(tmp_path: Path) -> None:
    found = page(matrix(), tmp_path)
    (policy,) = [a["content"] for a in found.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in found.scripts[1:]]
    assert allowed == hashes
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_an_attempt_without_curves_is_reported(tmp_path: Path, status: str) -> None:
    record = sample(status=status, reasons=["the broker is gone", "the broker is gone"])
    found = page([record], tmp_path)
    assert f"attempts/{record.attempt}/series.json is missing" in found.text
    assert found.text.count("the broker is gone") == 2, "once in the table, once in the section"
    assert json.loads(found.scripts[0]) == {}


DEEP = "[" * 100_000
LONE = '{"offenders": [{"kind": "lost", "key": "x\\ud800y"}]}'


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "cannot be read"),
        ("{}", "unexpected content"),
        ("[]", "unexpected content"),
        ("null", "No curves"),
        (DEEP, "cannot be read (RecursionError)"),
        (LONE, "x?y"),
    ],
    ids=lambda value: value[:20],
)
def test_broken_raw_files_do_not_break_the_report(tmp_path: Path, content: str, expected: str) -> None:
    record = sample()
    folder = tmp_path / "attempts" / record.attempt
    folder.mkdir(parents=True)
    for name in ("series.json", "audit.json"):
        (folder / name).write_text(content)
    target = write_report([record], tmp_path, tmp_path / "r.html", title="t")
    assert expected in Page(target.read_text(encoding="utf-8")).text


def test_figures_have_finite_numbers_only(tmp_path: Path) -> None:
    figure = go.Figure(go.Scatter(x=[1.0, 2.0], y=[float("nan"), 5.0]))
    assert json.loads(figures_json({"a": figure}))["a"]["data"][0]["y"] == [None, 5.0]
    assert "No records." in page([], tmp_path).text


def test_the_report_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "reports" / "r.html"
    assert write_report([sample()], tmp_path, target, title="first") == target
    before = target.read_text()

    def full(self: Path, text: str, encoding: str) -> None:
        self.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_report([sample()], tmp_path, target, title="second")
    assert target.read_text() == before
    assert list(target.parent.iterdir()) == [target]
