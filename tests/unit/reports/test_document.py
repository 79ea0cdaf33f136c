"""Markdown pages: every matrix and preset, valid tables and charts for any records, errors."""

from __future__ import annotations

import gzip
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from faultline.cli import main as cli
from faultline.cli.judge_command import judge_sweep
from faultline.comparison.findings.catalogue import CLAIMS
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import PlannedCell
from faultline.records.bundle import SUFFIX, Bundle
from faultline.records.catalogue import BY_KEY
from faultline.records.find import read_saved
from faultline.records.record import Record, TimelineEvent, WarmupPart
from faultline.records.work_parts import KeySkewPart, WorkPart
from faultline.reports.markdown.page import IMAGES, Page, grid, results_page, select_matrix, write_page
from faultline.reports.markdown.svg import ChartLine, ChartPoint, Panel, draw_chart
from faultline.reports.markdown.tables import escape_cell, markdown_column
from faultline.system.errors import ConfigError
from tests.support.choice import chosen
from tests.unit.pages_store import put
from tests.unit.sample_records import CENSORED, RECOVERED, sample

ROOT = Path(__file__).parents[3]
EVIL = "x|y`</td>\n![a](b)<script>"
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)
NUMBERS = st.floats(0, 1e6)
PRESETS = [(spec.name, preset) for spec in MATRICES.values() for preset in spec.presets]


def made(matrix: str, preset: str) -> list[Record]:
    """Return a usable record for each cell of a preset; the first one with a fault is censored."""
    return [_made(matrix, *numbered) for numbered in enumerate(MATRICES[matrix].preset_matrix(preset).cells("b1"))]


def _made(matrix: str, number: int, cell: PlannedCell) -> Record:
    recovery = None if cell.config.fault == "none" else RECOVERED if number else CENSORED
    latency = {"mean": 500.0 + number, "p50": 400.0 + number}
    record = sample(attempt=f"a{number:03d}", repetition=cell.repetition, latency=latency, recovery=recovery,
                    **cell.config.model_dump())  # fmt: skip
    update = {
        "gc_s": 0.5,
        "rps_per_core": 1000.0 + number,
        "work": WorkPart(batches=20, tasks=100 + number, batch_s=9.0, task_s=8.0),
        "key_skew": KeySkewPart(requested=1.0, measured=1.01, low=1.0, high=1.02, hottest_share=0.1, distinct=99),
    }
    return record.model_copy(update={"matrix": matrix, "metrics": record.metrics.model_copy(update=update)})


def at_rate(rate: float, attempt: str = "a", **named: Any) -> Record:
    return sample(fault="none", rate=rate, workload="stock_group_by", attempt=attempt, **named)


def page(records: list[Record], matrix: str) -> Page:
    return results_page(records, matrix, name=matrix)


def rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading."""
    part = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def headings(text: str) -> list[str]:
    return re.findall(r"^## (.+)$", text, re.M)


@pytest.mark.parametrize(("matrix", "preset"), PRESETS, ids=lambda value: str(value))
def test_every_preset_of_every_matrix_has_its_page(matrix: str, preset: str) -> None:
    records = made(matrix, preset)
    found = page(records, matrix)
    assert found.text.startswith(f"# {MATRICES[matrix].title}\n")
    spec, configurations = MATRICES[matrix], {record.config_id for record in records}
    for heading in ("Latency and throughput", "CPU, memory and work", "Audit"):
        table = rows(found.text, heading)
        assert len(table) == 2 + len(configurations)
        assert len({len(row) for row in table}) == 1
        axes = len(spec.axes) + len(spec.values(preset).get("axes", ()))
        axes += "fault" in table[0] and "fault" not in spec.axes
        assert len({tuple(row[:axes]) for row in table[2:]}) == len(configurations), "each row is a point of its own"
    assert rows(found.text, "Latency and throughput")[2][-1].endswith(
        f"of {MATRICES[matrix].values(preset)['repetitions']}"
    )
    assert ("Recovery" in headings(found.text)) == any(record.config["fault"] != "none" for record in records)
    assert ("Keys" in headings(found.text)) == (matrix in ("skew_x_alignment_mode", "flink_alignment"))
    assert all(f"| {claim.text} | {claim.source} | " in found.text for claim in CLAIMS.get(matrix, ()))
    assert ("The paper's findings" in headings(found.text)) == (matrix not in ("nexmark", "network_faults", "sweep"))
    engines = {str(record.config.get("engine", "spark")) for record in records}
    assert ("these runs use Flink" in found.text) == (engines == {"flink"})
    assert ("Streaming and Flink on" in found.text) == (engines == {"flink", "spark"})
    # Runs through Kafka do not measure the maximum throughput of a query.
    assert ("Events per second" in headings(found.text)) == (matrix == "nexmark" and preset != "recovery")
    assert 1 <= len(found.images) <= 2
    for path, svg in found.images.items():
        assert path.startswith(f"{IMAGES}/{matrix}-") and f"]({path})" in found.text
        assert ET.fromstring(svg).tag.endswith("svg")
    assert page(records[::-1], matrix) == found, "equal records, equal page"


def test_a_row_has_median_minimum_maximum_and_sums_of_counts() -> None:
    values = [(100, 0, 10.0), (100, 1, 12.0), (100, 2, 30.0), (1000, 0, 5.0)]
    records = [at_rate(rate, f"a{rate}{n}", repetition=n, latency={"p50": p50}) for rate, n, p50 in values]
    invalid = at_rate(1000, "z", status="invalid", reasons=["schedule-lag: p99 70 ms > 50 ms"])
    text = page([*records, invalid], "input_rate").text
    table = rows(text, "Latency and throughput")
    assert table[0][:2] == ["rate (records/s)", "p50 (ms)"]
    assert [row[:2] for row in table[2:]] == [["100", "12 (10–30)"], ["1,000", "5.0"]]
    assert [row[-1] for row in table[2:]] == ["3 of 3", "1 of 2"]
    audit = rows(text, "Audit")
    assert audit[2][audit[0].index("overcounted")] == f"{3 * 12_345:,}"
    assert "Also excluded, at points with usable records: schedule-lag (1)" in text


def test_only_the_newest_record_of_a_repetition_counts() -> None:
    measured = [
        ("a1", 0, 90.0, "valid"),
        ("a2", 1, 12.0, "valid"),
        ("a3", 0, 10.0, "valid"),
        ("a4", 1, 99.0, "invalid"),
    ]
    records = [at_rate(100, name, repetition=n, latency={"p50": p50}, status=how) for name, n, p50, how in measured]
    text = page(records[::-1], "input_rate").text
    row = rows(text, "Latency and throughput")[2]
    assert (row[1], row[-1]) == ("11 (10–12)", "2 of 3")
    assert "records: 4," in text, "all records are counted"
    assert "1 older records are excluded." in text
    assert "older records" not in page(records[1:], "input_rate").text


def test_the_head_counts_load_invalid_runs_and_short_warm_ups() -> None:
    def measured(attempt: str, status: str, steady: bool | None) -> Record:
        record = at_rate(100, attempt, status=status)
        at = {"gate": 0, "measured_from": 30, "measured_until": 1830}
        timeline = [TimelineEvent(name=name, wall_ns=s * 10**9, mono_ns=s, source="") for name, s in at.items()]
        warmup = WarmupPart(waited_s=10.0, steady=steady, bound_s=30.0)
        metrics = record.metrics.model_copy(update={"warmup": warmup})
        return record.model_copy(update={"timeline": timeline, "metrics": metrics})

    records = [measured("a1", "valid", True), measured("a2", "valid", False), measured("a3", "invalid", False)]
    text = page(records, "input_rate").text
    assert "load for 1.5 machine-hours" in text and "1 of 3 runs (33 %)" in text
    assert "In 1 run the warm-up ended" in text
    assert "warm-up ended" not in page(records[:1], "input_rate").text


def test_a_point_without_a_valid_record_names_the_reason() -> None:
    late = "interval-not-held: 2.6 s between commits > 2.40 s"
    invalid = [at_rate(9, name, status="invalid", reasons=[late]) for name in "pq"]
    records = [at_rate(100), *invalid, at_rate(7, "r", status="failed")]
    table = rows(page(records, "input_rate").text, "Excluded records")
    assert table[2] == ["7", "1", "failed"]
    assert table[3][:2] == ["9", "2"] and table[3][2].startswith(late) and table[3][2].endswith("(and 1 more)")
    only = page(records[1:], "input_rate")
    image = "".join(only.images.values())
    assert 'class="invalid' in image and 'class="mark' not in image, "hollow, since none counts"
    assert "| 9 | 2 |" in only.text


def test_empty_columns_are_omitted() -> None:
    records = [sample(fault="none", executor_cores=number, workload="stock_join") for number in (1, 2)]
    heads = rows(page(records, "executor_cores").text, "CPU, memory and work")[0]
    assert "GC (s)" not in heads and "Python workers (cores)" not in heads
    assert heads[1] == "oversubscribed", "2 executors of 2 cores on 2"
    heads = rows(page(records[:1], "executor_cores").text, "CPU, memory and work")[0]
    assert "oversubscribed" not in heads


def test_control_runs_are_separate_rows_and_settings_are_common_to_all() -> None:
    kills = [sample(state_mb=state, recovery=RECOVERED, attempt=f"k{state}") for state in (1, 8)]
    control = sample(state_mb=1, fault="none", attempt="c")
    text = page([*kills, control], "state_size_x_checkpoint_interval").text
    table = rows(text, "Latency and throughput")
    assert table[0][:2] == ["state (MB)", "fault"] and "`checkpoint_interval_s` 2" in text
    assert [row[:2] for row in table[2:]] == [["1", "executor kill"], ["8", "executor kill"], ["1", "control"]]
    settings = next(line for line in text.splitlines() if line.startswith("- Settings"))
    assert "`workload` word_count" in settings and "state_mb" not in settings and "window_s" not in settings
    text = page([sample(fault="none", workload="stock_join", late=0.02)], "executor_cores").text
    assert "`window_s` 10" in text and "`late` 0.02" in text and "no fault." in text


def test_the_machine_includes_a_known_processor() -> None:
    record = made("executor_cores", "smoke")[0]
    assert "- Machine: 2 cores, 8 GiB (" in page([record], "executor_cores").text
    known = record.model_copy(update={"environment": record.environment.model_copy(update={"processor": "Some CPU"})})
    assert "- Machine: 2 cores of Some CPU, 8 GiB (" in page([known], "executor_cores").text


def test_a_lower_bound_is_marked() -> None:
    found = page(made("recovery", "default"), "recovery")
    macro = rows(found.text, "Recovery")
    column = macro[0].index("**macro** (s)")
    assert any(row[column].startswith("> ") for row in macro[2:])
    assert 'fill="none"' in found.images["images/recovery-recovery.svg"]


@given(TEXTS)
def test_an_escaped_cell_is_one_line_within_one_cell(text: str) -> None:
    cell = escape_cell(text)
    assert "\n" not in cell
    assert len(re.split(r"(?<!\\)(?:\\\\)*\|", cell)) == 1
    assert re.sub(r"\\(.)", r"\1", cell) == " ".join(text.split())


def test_a_spread_below_the_precision_is_omitted() -> None:
    near = [sample(attempt=f"a{number}") for number in range(2)]
    near = [one.model_copy(update={"metrics": one.metrics.model_copy(update={"gc_s": 0.5 + number / 1000})})
            for number, one in enumerate(near)]  # fmt: skip
    assert markdown_column(BY_KEY["gc_s"]).text(grid(near, ())[0][0]) == "0.50"


MARKS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, st.booleans()), min_size=1, max_size=5)


@given(st.lists(MARKS, min_size=1, max_size=9), TEXTS, st.integers(1, 3))
def test_a_chart_is_valid_svg_with_every_point(lines: list[list[Any]], name: str, panels: int) -> None:
    drawn = tuple(
        ChartLine(f"{name}{order}", tuple(_mark(place, mark) for place, mark in enumerate(marks)))
        for order, marks in enumerate(lines)
    )
    places = [f"{name}{place}" for place in range(5)]
    svg = draw_chart([Panel(name, drawn)] * panels, places, name, name)
    assert svg == draw_chart([Panel(name, drawn)] * panels, places, name, name)
    root = ET.fromstring(svg)
    marks = [one for one in root.iter() if one.get("class", "").startswith("mark")]
    assert len(marks) == len(lines) + panels * sum(map(len, lines)), "the legend has one per line"
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for one in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 <= float(one.attrib["cx"]) <= width and 0 <= float(one.attrib["cy"]) <= height


def _mark(place: int, values: tuple[float, float, float, bool]) -> ChartPoint:
    low, median, high = sorted(values[:3])
    return ChartPoint(place, median, low, high, values[3])


def of_matrix(name: str | None) -> Record:
    return sample().model_copy(update={"matrix": name})


@pytest.mark.parametrize(
    ("matrices", "named", "message"),
    [
        ([], None, "--page: no record matches"),
        (["recovery"], "recvery", "--matrix: got recvery"),
        (
            ["recovery", "input_rate"],
            None,
            "--page: got records of input_rate and recovery",
        ),
        (["recovery", None], None, "--page: got records of no matrix and recovery"),
        ([None], None, "--page: got records of no matrix"),
        (["m"], None, "--page: got the matrix m"),
    ],
)
def test_a_page_needs_one_matrix(matrices: list[str | None], named: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        select_matrix([of_matrix(name) for name in matrices], named)
    assert "\n" not in str(caught.value)


def test_a_page_takes_the_matrix_of_its_records_and_never_mixes_builds() -> None:
    assert (
        select_matrix([of_matrix("recovery")] * 2, None)
        == select_matrix([of_matrix("input_rate")], "recovery")
        == "recovery"
    )
    records = [sample(fault="none"), sample(fault="none", attempt="b").model_copy(update={"build": "b2"})]
    with pytest.raises(ConfigError, match=r"--page: got 2 builds"):
        page(records, "recovery")


def test_the_page_is_written_with_its_charts(tmp_path: Path) -> None:
    target = tmp_path / "new" / "mine.md"
    assert write_page(made("executor_cores", "default"), target) == "executor_cores"
    pictures = sorted(path.name for path in (target.parent / IMAGES).iterdir())
    assert pictures == ["mine-latency.svg", "mine-resources.svg"]
    assert all(f"({IMAGES}/{name})" in target.read_text() for name in pictures)
    with pytest.raises(ConfigError, match=r"--page: writing .*new failed: Is a directory"):
        write_page(made("executor_cores", "smoke"), target.parent)


def results(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["results", *map(str, arguments)])


def refused(*arguments: object) -> str:
    """Return the error of the command."""
    failed = results(*arguments)
    assert isinstance(failed.exception, ConfigError) and "\n" not in str(failed.exception), failed.output
    return str(failed.exception)


def test_saved_records_and_the_store_make_equal_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path / "results"))
    records, page = made("input_rate", "default"), tmp_path / "page.md"
    put(tmp_path / "results", *records)
    listed = results("--json").stdout
    assert results("--page", page).exit_code == 0
    of_the_store = page.read_text()
    half = len(records) // 2
    plain, packed = tmp_path / "all.json", tmp_path / "all.json.gz"
    plain.write_text(json.dumps(json.loads(listed)[:half]))
    packed.write_bytes(gzip.compress(listed.encode()))
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path / "elsewhere"))
    done = results("--from", packed, "--from", plain, "--page", page)
    assert done.exit_code == 0 and page.read_text() == of_the_store, done.output
    assert not (tmp_path / "elsewhere").exists(), "the store is not touched"
    done = results("--from", plain, "--json")
    assert [one["attempt"] for one in json.loads(done.stdout)] == [one.attempt for one in records[:half]]


def test_the_command_takes_several_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path))
    records, page = made("input_rate", "default"), tmp_path / "page.md"
    put(tmp_path, *(one.model_copy(update={"sweep_id": f"s{number % 3}"}) for number, one in enumerate(records)))
    done = results("--sweep", "s0", "--sweep", "s2", "--sweep", "s0", "--page", page)
    assert done.exit_code == 0, done.output
    assert "records: 10, sweeps s0, s2" in page.read_text()
    assert refused("--sweep", "none", "--page", page).startswith("--sweep: ")
    assert "no record matches" in refused("--status", "failed", "--page", page)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "file: Invalid JSON"),
        (b"{}", "file: Input should be a valid array"),
        (b'[{"schema": 1}]', "0.schema: got 1; expected 3; fix: run scripts/migrate.py"),
        (gzip.compress(b"[]", mtime=0)[:-4], "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_file_without_saved_records_is_named(
    content: bytes | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path))
    path = tmp_path / ("a.json.gz" if content is None or content[:1] == b"\x1f" else "a.json")
    if content is not None:
        path.write_bytes(content)
    assert refused("--from", path).startswith(f"--from {path}: {why}")


def test_conflicting_records_of_one_attempt_are_rejected(tmp_path: Path) -> None:
    one = sample()
    other = one.model_copy(update={"status": "invalid", "reasons": ["undrained: 3 records"]})
    for name, record in (("a", one), ("b", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps([record.as_dict()]))
    with pytest.raises(ConfigError, match=f"--from .*{one.attempt}: "):
        read_saved([tmp_path / "a.json", tmp_path / "b.json"])


RESULTS = ROOT / "docs" / "results"
SAVED = sorted([*(RESULTS / "records").glob("*.json.gz"), *(RESULTS / "bundles").glob(f"*{SUFFIX}")])


@pytest.mark.parametrize("saved", SAVED, ids=lambda path: path.name)
def test_the_pages_in_the_docs_are_those_of_their_records(saved: Path, tmp_path: Path) -> None:
    """After a change of the pages, regenerate them as described in docs/results/README.md."""
    name = saved.name.split(".")[0]
    here = tmp_path / saved.relative_to(RESULTS)
    here.parent.mkdir()
    here.symlink_to(saved)
    write_page(read_saved([here]), tmp_path / f"{name}.md", bundles=[here] if saved.name.endswith(SUFFIX) else [])
    for path in [tmp_path / f"{name}.md", *(tmp_path / "images").iterdir()]:
        assert path.read_text() == (RESULTS / path.relative_to(tmp_path)).read_text(), path.name


@pytest.mark.parametrize(
    "name", chosen(sorted(path.name for path in (RESULTS / "bundles").glob(f"*{SUFFIX}")), {f"recovery{SUFFIX}"})
)
def test_the_records_in_the_docs_are_those_of_their_raw_files(
    name: str, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejudge every attempt (every fourth without --thorough); figures that depend on sampled instants may differ."""
    every = Bundle.records
    monkeypatch.setattr(Bundle, "records", lambda bundle: every(bundle)[:: 1 if share == 1 else 4])
    for again in judge_sweep(str(RESULTS / "bundles" / name), (), write=False).found:
        if again.problem:
            assert again.before.status in ("failed", "cancelled"), again.problem
            continue
        (now,) = again.found.values()
        before, audit = again.before.metrics, now.metrics.audit
        # Older records count unprocessed tuples as lost.
        old = {"undrained": None, **({"lost": before.audit.lost} if audit.undrained else {})}
        assert (now.status, audit.model_copy(update=old), now.metrics.cpu_cores) == (
            again.before.status, before.audit, before.cpu_cores,
        )  # fmt: skip
        assert now.metrics.latency_ms.p50 == pytest.approx(before.latency_ms.p50, abs=60)
        assert now.metrics.recovery.macro_s == pytest.approx(before.recovery.macro_s, abs=0.2)
