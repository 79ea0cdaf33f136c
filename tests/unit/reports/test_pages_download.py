"""Downloads of records."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pandas as pd

from faultline.reports.tables import as_csv, as_parquet
from tests.unit.pages_store import grid, put, record, site


def test_the_download_holds_every_record(tmp_path: Path) -> None:
    plan = {"faults": [{"victim": "executor", "action": "kill", "at_s": 41.0}]}
    put(
        tmp_path,
        *grid(),
        record(
            "f1",
            status="failed",
            reasons=['a, "quoted"\nline', "=1+1"],
            raw_config={"corpus": "ä", "fault_plan": plan},
        ),
    )
    one = site(tmp_path)
    one.index.refresh()
    entries = one.index.of_sweep("s1")
    table_rows = list(csv.DictReader(io.StringIO(as_csv(entries).decode())))
    assert len(table_rows) == 13
    failed = next(row for row in table_rows if row["attempt"] == "f1")
    assert (failed["status"], failed["latency_ms_p99"], failed["config_corpus"]) == ("failed", "", "ä")
    assert failed["reasons"] == 'a, "quoted"\nline; =1+1'
    assert json.loads(failed["config_fault_plan"]) == plan
    table = pd.read_parquet(io.BytesIO(as_parquet(entries)))
    assert len(table) == 13
    assert table["latency_ms_p99"].dtype == "float64" and table["repetition"].dtype == "int64"
    assert table.set_index("attempt").loc["s1-8-5-2", "latency_ms_p99"] == 8502.0
    assert set(table_rows[0]) == set(table.columns)


def test_columns_of_mixed_kinds_become_text(tmp_path: Path) -> None:
    put(
        tmp_path, record("a1", raw_config={"odd": 1, "flag": True}), record("a2", raw_config={"odd": "x", "flag": None})
    )
    one = site(tmp_path)
    one.index.refresh()
    table = pd.read_parquet(io.BytesIO(as_parquet(one.index.all())))
    assert list(table["config_odd"]) == ["1", "x"]
    assert list(table["config_flag"]) == [True, None]
