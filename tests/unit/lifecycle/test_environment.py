"""The build: what changes what is measured changes its label."""

from __future__ import annotations

from pathlib import Path

from faultline.experiment.config import parse_configuration
from faultline.lifecycle.environment import READERS, describe, programs
from faultline.system.settings import ROOT, Settings


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


def test_of_a_targets_broker_nothing_is_said_that_is_known_of_the_embedded_one(tmp_path: Path) -> None:
    settings = Settings(ROOT, tmp_path, tmp_path / "results")
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "server.properties").write_text("log.retention.hours=24\n")
    usual = describe(settings, parse_configuration({}), "17")
    there = describe(settings, parse_configuration({"target": "lab"}), "17")
    assert usual["kafka_conf"] == {"log.retention.hours": "24"} and "kafka" in usual["versions"]
    assert there["kafka_conf"] is None
    assert usual["versions"].keys() - there["versions"].keys() == usual["jvm"].keys() - there["jvm"].keys() == {"kafka"}
