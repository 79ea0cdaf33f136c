"""Summary tables of `aggregate`, with unusual records."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from faultline.lifecycle.finish import aggregation
from faultline.reports import tables as download
from faultline.system.settings import Settings
from tests.support.spark_session import PROGRAMS as PROGRAMS
from tests.unit.sample_records import RECOVERED, sample, schema_2

from aggregate import FORMULA, KEYS, NUMBER, ATTEMPT_COLUMNS, experiments, with_attempt, recoveries, swap, write  # isort: skip  # a program's neighbour
from aggregate import aggregate  # isort: skip

pytestmark = pytest.mark.timeout(900)


TRIGGER = {"waited_s": 3.5, "phase": "commit"}


@pytest.mark.parametrize(
    "parts", [[], [{"recovered": True, "macro_s": 4.5, "trigger": None}, {"macro_s": 5.0, "trigger": TRIGGER}]]
)
def test_recoveries_without_any_recovery_are_an_empty_table(
    spark: SparkSession, tmp_path: Path, parts: list[dict[str, Any]]
) -> None:
    keys = {"matrix": "m", "config_id": "c", "series": "s", "build": "b", "attempt": "a", "status": "valid"}
    (tmp_path / "record.json").write_text(json.dumps({**keys, "metrics": {"recoveries": parts}}))
    found = recoveries(spark.read.option("multiLine", True).json(str(tmp_path / "record.json")))
    of_parts = {"recovered", "macro_s", "trigger_waited_s", "trigger_phase"} if parts else set()
    assert set(found.columns) == {*keys, "fault", *of_parts}
    assert [(row["attempt"], row["fault"], row["macro_s"]) for row in found.collect()] == [
        ("a", number, part["macro_s"]) for number, part in enumerate(parts)
    ]
    write(found.orderBy("fault"), tmp_path, "recoveries")
    rows = list(csv.DictReader((tmp_path / "recoveries.csv").read_text().splitlines()))
    assert [row.get("trigger_phase", "") for row in rows] == ["", "commit"][: len(parts)]


def test_records_of_schema_2_and_3_share_their_columns(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(tmp_path, tmp_path, tmp_path)
    part = {**RECOVERED, "note": "timeline-incomplete: missing: t3"}
    for attempt, at_schema in (("20261121T061500Z-000001", dict), ("20261121T061600Z-000002", schema_2)):
        values = sample(attempt=attempt, status="invalid", reasons=["background-load: why"], recovery=part).as_dict()
        values["metrics"] |= {
            "cpu_by_host": {"big-1.example": 1.5}, "background_cpu": {"processes": 0.25, "steal": 0.5},
            "recoveries": [part], "audit": {"unexpected": 0, "checksum_mismatches": 2},
        }  # fmt: skip
        file = settings.records / "configuration" / f"{attempt}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(at_schema(values)))
    aggregate(spark, aggregation(settings).arguments)
    first, second = pq.read_table(settings.results / "summary" / "experiments.parquet").to_pylist()
    assert {**first, "attempt": second["attempt"]} == second
    assert (first["status"], first["reasons"], first["recovery_note"]) == (
        "invalid", "background-load: why", part["note"],
    )  # fmt: skip
    roots = ("cpu_b", "background_", "audit_", "late_", "cpu_n")
    assert {key: value for key, value in first.items() if key.startswith(roots)} == {
        "cpu_by_host_big-1_example": 1.5, "background_cpu_processes": 0.25, "background_cpu_steal": 0.5,
        "audit_unexpected": 0, "audit_checksum_mismatches": 2, "late_records": None, "cpu_by_phase": None,
    }  # fmt: skip
    faults = pq.read_table(settings.results / "summary" / "recoveries.parquet").to_pylist()
    assert [row["note"] for row in faults] == [part["note"]] * 2


def test_a_swap_removes_only_the_previous_tables(tmp_path: Path) -> None:
    results = tmp_path / "results"
    target = results / "summary"
    precious = [tmp_path / "summary-1", results / "records", tmp_path / "elsewhere" / "summary-7"]
    for folder in (*precious, results / "summary-2", results / "summary-3"):
        folder.mkdir(parents=True)
    swap(results / "summary-2", target)
    assert target.resolve() == results / "summary-2"
    swap(results / "summary-3", target)
    assert target.resolve() == results / "summary-3" and not (results / "summary-2").exists()
    (results / "summary-7").symlink_to(precious[2])
    for planted in ("../summary-1", str(precious[0]), "records", str(precious[2]), "summary-7"):
        target.unlink()
        target.symlink_to(planted)
        swap(results / "summary-3", target)
        assert all(folder.is_dir() for folder in precious), planted
        assert target.resolve() == results / "summary-3"


def test_host_names_with_dots_have_a_column(spark: SparkSession, tmp_path: Path) -> None:
    record = {
        **dict.fromkeys([*KEYS, *ATTEMPT_COLUMNS], "x"),
        "status": "valid", "reasons": ["a: b"], "config": {"rate": 5.0},
        "metrics": {"cpu_by_host": {"node1.example-x.com": 0.5}, "latency_ms": {"p50": 3.0}},
    }  # fmt: skip
    (tmp_path / "record.json").write_text(json.dumps(record))
    table = experiments(spark.read.option("multiLine", True).json(str(tmp_path / "record.json")))
    (row,) = table.collect()
    assert (row["cpu_by_host_node1_example-x_com"], row["latency_ms_p50"], row["config_rate"]) == (0.5, 3.0, 5.0)


def test_attempts_are_identified_by_their_folder(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "attempts" / "mine" / "attempts" / "a1"
    folder.mkdir(parents=True)
    (folder / "series.json").write_text('{"latency": []}')
    (row,) = with_attempt(spark.read.json(str(folder / "series.json"))).collect()
    assert row["attempt"] == "a1"


TEXTS = [
    "=1+1", "+SUM(1)", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\n=1", " =1", "＝1", "-", "-4.2", "+1e-3", "-4.2\n", "a=b",
    "", 'a",=cmd()', 'say "=1"', "x\r=1", "x\n=1", "x\r\n@1", " a ", "a;b,c", "\\", "ü", "'=1",
]  # fmt: skip


def test_csv_texts_are_not_formulas(spark: SparkSession, tmp_path: Path) -> None:
    assert (FORMULA, NUMBER) == (download.FORMULA, download.NUMBER), "both are one rule"
    rows = [(text, -4.25, None if number % 2 else -7) for number, text in enumerate(TEXTS)]
    table = spark.createDataFrame(rows, "text string, figure double, `=count` int").repartition(1)
    write(table, tmp_path, "odd")
    kept = spark.read.parquet(str(tmp_path / "odd.parquet"))
    assert [(row["text"], row["figure"], row["=count"]) for row in kept.collect()] == rows, "Parquet has it as it is"
    with (tmp_path / "odd.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["text", "figure", "'=count"]
    assert [row[0] for row in rows] == [download.as_cell(text) for text in TEXTS]
    assert {row[1] for row in rows} == {"-4.25"} and {row[2] for row in rows} == {"-7", ""}
