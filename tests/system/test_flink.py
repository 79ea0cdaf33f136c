"""The word count on Flink: exact counts and a complete timeline under kills, and nothing left running."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultline.cli.build_command import add_engine
from faultline.records.record import Record
from faultline.system.errors import FaultlineError
from faultline.system.process_ledger import process_of, read_ledger
from faultline.system.process_tags import run_option
from faultline.system.settings import load_settings
from tests.support.installation import Installation

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(2400)]

PARAMETERS = ("rate=200", "flink_conf.heartbeat.interval=500ms", "flink_conf.heartbeat.timeout=5s")


@pytest.fixture(scope="module")
def running(shared_installation: Installation) -> Installation:
    """Running Kafka, with Flink installed."""
    try:
        add_engine("flink")
    except FaultlineError as error:
        pytest.skip(f"Flink cannot be installed here: {error}")
    (shared_installation.home / "flink").symlink_to(load_settings().home / "flink", target_is_directory=True)
    assert shared_installation.run("up", "--no-airflow").returncode == 0
    return shared_installation


@pytest.mark.parametrize("fault", ["executor", "driver", "kafka"])
def test_counts_are_exact_and_the_timeline_is_complete(running: Installation, fault: str) -> None:
    done = running.run("run", "word_count", "engine=flink", f"fault={fault}", *PARAMETERS)
    record = Record.model_validate_json(done.stdout)
    audit, events = record.metrics.audit, {event.name for event in record.timeline}
    assert audit.expected and record.metrics.recovery.recovered is not None, (record.reasons, done.stderr[-2000:])
    assert (audit.lost, audit.overcounted, audit.unexpected, audit.unknown, audit.checksum_mismatches) == (0,) * 5
    assert {"t0", "t2", "t3", "t4", "t5", "t6", "t7"} <= events
    folder = running.results / "attempts" / record.attempt
    assert not [entry for entry in read_ledger(folder / "ledger.jsonl") if process_of(entry)]
    mark = run_option(record.attempt).encode()
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in _content(path)]
    assert not (folder / "flink").exists(), "certificates and passwords are removed"


def test_a_workload_without_sql_is_refused(running: Installation) -> None:
    done = running.run("run", "pi", "engine=flink", "--dry-run")
    assert done.returncode == 2 and "workload: " in done.stderr


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
