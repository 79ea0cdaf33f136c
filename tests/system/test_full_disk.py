"""A disk with services, state and results fills up at each step of a real experiment."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultline.experiment.attempt import Attempt
from faultline.lifecycle.progress import phase_of
from faultline.records.store import Store
from faultline.system.errors import FaultlineError
from faultline.system.settings import Settings
from faultline.system.waiting import wait_until
from tests.support.installation import Installation, make_installation
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(3600)]

SIZE_MB = 2048
SMALL = ("word_count", "checkpoint_interval_s=1", "rate=100", "state_mb=0.1")
KILL = (*SMALL, "fault=executor", "warmup_s=5", "duration_s=42")
# Before and after.
SHORT = (*SMALL, "fault=none", "warmup_s=5", "duration_s=10")
# Phases and steps of the start, as shown in the progress line.
STEPS = (
    "creating topics", "launching processes", "waiting for the generator", "waiting for the engine",
    "waiting for the start barrier", "warm-up", "measuring", "killed executor", "draining", "harvesting", "judging",
)  # fmt: skip
# Time with a full disk, unless the experiment ends before.
FULL_S = 20.0
END_S = 400.0


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    with small_disk(tmp_path_factory.mktemp("full"), SIZE_MB) as made:
        yield made


@pytest.fixture(scope="module")
def installation(disk: SmallDisk) -> Iterator[Installation]:
    """Installation on the small disk, with an earlier record."""
    made = make_installation(disk.folder)
    assert made.run("up", "--no-airflow").returncode == 0
    assert made.run("run", *SHORT).stdout, "the record from before"
    yield made
    assert made.run("down").returncode == 0


def phase_text(settings: Settings, known: set[Path]) -> str:
    """Return the phase of the experiment started since, in words."""
    new = set(settings.attempts.iterdir()) - known
    if not new:
        return ""
    try:
        phase = phase_of(Attempt(max(new)))
    except (FaultlineError, OSError):
        return ""
    return f"{phase.name}: {phase.detail}"


def readable(settings: Settings) -> set[str]:
    """Return the attempts with a record; every file of the store is readable."""
    found = Store(settings.results).read()
    assert found.problems == ()
    return {record.attempt for record in found.records}


@pytest.mark.parametrize("step", STEPS)
def test_a_full_disk_loses_no_record(installation: Installation, disk: SmallDisk, tmp_path: Path, step: str) -> None:
    settings = installation.settings
    earlier, known = readable(settings), set(settings.attempts.iterdir())
    with (tmp_path / "output").open("wb") as output:
        run = subprocess.Popen(
            [*installation.command("run"), *KILL], env=installation.environment, stdout=output, stderr=output
        )
        try:
            wait_until(
                lambda: step in phase_text(settings, known), timeout_s=END_S, every_s=0.02, what=step,
                alive=lambda: None if run.poll() is None else f"it ended before: {(tmp_path / 'output').read_text()}",
            )  # fmt: skip
            disk.fill()
            try:
                run.wait(FULL_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                assert readable(settings) >= earlier
                disk.free()
            run.wait(END_S)
        finally:
            run.kill()
    assert readable(settings) >= earlier
    # Freeing disk space is sufficient.
    again = installation.run("run", *SHORT)
    made = readable(settings) - earlier
    assert again.stdout, again.stderr
    newest = max(Store(settings.results).read().records, key=lambda record: record.attempt)
    assert newest.attempt in made and newest.status in ("valid", "unmet", "invalid"), newest.reasons
    assert all(Attempt(folder).over for folder in settings.attempts.iterdir()), "what was broken off is closed"
    audit = newest.metrics.audit
    assert audit is not None and (audit.lost, audit.unexpected) == (0, 0)
