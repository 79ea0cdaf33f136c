"""The build: what changes what is measured changes its label."""

from __future__ import annotations

from pathlib import Path

from faultline.base.settings import ROOT
from faultline.runner.environment import READERS, programs


def test_a_workloads_program_is_part_of_the_build_and_a_reader_is_not(tmp_path: Path) -> None:
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "q1.sql").write_text("SELECT 1")
    before = programs(tmp_path)
    assert set(before) == {"queries/q1.sql"}
    (tmp_path / "harvest.py").write_text("1")
    (tmp_path / "word_tuples.py").write_text("1")
    assert programs(tmp_path) == before
    (tmp_path / "queries" / "q1.sql").write_text("SELECT 2")
    assert programs(tmp_path) != before


def test_readers_are_there_and_no_workload() -> None:
    folder = ROOT / "spark_jobs"
    assert all((folder / f"{name}.py").is_file() for name in READERS)
    found = programs(folder)
    assert {"word_count.py", "nexmark_query.py", "nexmark/events.py", "nexmark/queries/q5.sql", "topology.py"} <= set(
        found
    )
