"""Cleanup of orphaned attempts, with real processes; other attempts are untouched."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fault.action import UndoSpec
from faultline.experiment.attempt import Attempt, unhealed_attempts, write_json
from faultline.experiment.config import parse_configuration
from faultline.experiment.run import run_of
from faultline.lifecycle.ending.orphans import MIN_AGE_S, close_orphans, close_ownerless
from faultline.lifecycle.ending.undo_replay import undo_fields
from faultline.lifecycle.hooks import PlainHooks
from faultline.lifecycle.prepare import Order, attempt_description
from faultline.lifecycle.start import start_generator
from faultline.lifecycle.teardown import close_attempt, refuse_closed
from faultline.records.store import Store
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.journal import Journal
from faultline.system.process_ledger import (
    end_ledger,
    process_of,
    read_ledger,
    spawn_detached,
    start_identity,
    this_process,
)
from faultline.system.settings import Settings
from tests.support.attempts import prepared
from tests.support.decoys import OTHER_UID, only_root
from tests.support.plain_hooks import context_of

SLEEP = [sys.executable, "-c", "import time; time.sleep(900)"]
DEAD = {"pid": 2**22 - 1, "create_time": 1.0}


class Site:
    """An installation with attempts, and the topics that were deleted."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings(folder, folder / "home", folder / "results")
        self.deleted: list[str] = []
        self.running: set[str] = set()

    def attempt(self, number: int, run_id: str | None = "run", **facts: Any) -> Attempt:
        """Return an attempt whose tasks were killed while its generator runs."""
        name = f"20261121T0615{number:02d}Z-00000{number}"
        own = {"run_id": run_id, "environment": {"host": socket.gethostname()}, "home": str(self.settings.home)}
        attempt = prepared(self.settings.attempts / name, facts={**own, **facts})
        out, err = attempt.folder / "out", attempt.folder / "err"
        spawn_detached(
            SLEEP,
            role="generator",
            attempt=attempt.id,
            ledger=attempt.ledger,
            stdout=out,
            stderr=err,
            cwd=attempt.folder,
        )
        return attempt

    def sweep(self) -> list[str]:
        return close_orphans(self.settings, lambda run_id: run_id in self.running, self.deleted.extend)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for ledger in made.settings.attempts.glob("*/ledger.jsonl"):
        end_ledger(ledger)


def lives(attempt: Attempt) -> bool:
    return process_of(read_ledger(attempt.ledger)[0]) is not None


def test_an_orphan_is_closed_with_a_record_and_a_second_sweep_finds_nothing(site: Site) -> None:
    orphan = site.attempt(1)
    lines = site.sweep()
    assert lines == [f"{orphan.id}: orphaned attempt closed (1 processes ended)"]
    assert not lives(orphan)
    assert site.deleted == [f"{orphan.id}-{role}" for role in ("input", "output", "warmup")]
    (record,) = Store(site.settings.results).query()
    assert (record.attempt, record.status) == (orphan.id, "failed")
    assert site.sweep() == []
    assert len(site.deleted) == 3


def test_a_single_run_whose_process_is_gone_ends_as_cancelled_when_services_come_up(site: Site) -> None:
    single, measured = site.attempt(1, run_id="gone", owner=DEAD), site.attempt(2, owner=_me())
    of_airflow, open_still = site.attempt(3, run_id="unknown"), site.attempt(4, owner=DEAD)
    write_json(open_still.unhealed, {"why": "the host does not answer"})
    site.settings.home.mkdir()
    broken = prepared(site.settings.attempts / "20261121T061505Z-000005")
    (broken.folder / "attempt.json").write_text("{")

    def close() -> list[str]:
        return close_ownerless(site.settings, site.deleted.extend)

    cleaned, damaged = close()
    assert cleaned == f"{single.id}: orphaned attempt closed (1 processes ended)"
    assert damaged.startswith("20261121T061505Z-000005: closing the orphaned attempt failed: ")
    assert not lives(single) and lives(measured) and lives(of_airflow) and lives(open_still)
    (record,) = Store(site.settings.results).query()
    assert (record.attempt, record.status) == (single.id, "cancelled") and "power cut" in record.reasons[0]
    assert site.deleted == [f"{single.id}-{role}" for role in ("input", "output", "warmup")]
    assert not any(single.id in line for line in close())


def test_a_repeated_step_starts_nothing(site: Site) -> None:
    """Airflow may repeat a task after its scheduler died; two generators would invalidate the attempt."""
    attempt = site.attempt(1)
    with pytest.raises(InfrastructureError, match="^generator: start failed"):
        start_generator(context_of(attempt, site.settings))
    assert len(read_ledger(attempt.ledger)) == 1


def test_active_attempts_are_untouched(site: Site) -> None:
    measured, local = site.attempt(1, run_id="busy"), site.attempt(2, owner=_me())
    unknown = site.attempt(3, run_id=None)  # from a version that stored no run
    site.running = {"busy"}
    assert site.sweep() == []
    assert all(map(lives, (measured, local, unknown)))
    # Without Airflow, the state of its runs is unknown.
    plain = PlainHooks(site.settings)
    assert close_orphans(site.settings, plain.is_run_active, site.deleted.extend) == []
    assert lives(measured)


def test_a_run_without_a_scheduler_is_dead_with_its_process(site: Site) -> None:
    gone, reused = site.attempt(1, owner=DEAD), site.attempt(2, owner={**_me(), "start_ticks": 1})
    site.running = {"run"}
    assert len(site.sweep()) == 2
    assert not lives(gone) and not lives(reused)


def test_topics_of_a_completed_run_are_kept_until_the_harvest(site: Site) -> None:
    ended, harvested = site.attempt(1), site.attempt(2)
    for attempt in (ended, harvested):
        write_json(attempt.folder / "end.json", {})
    harvested.harvest.mkdir()
    (harvested.harvest / "counts.parquet").touch()
    site.sweep()
    assert site.deleted == [f"{harvested.id}-{role}" for role in ("input", "output", "warmup")]


def test_a_failed_undo_keeps_the_attempt_open_until_a_later_one_succeeds(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host of the victim is unreachable; all else is cleaned up, and the next experiment retries."""
    orphan = site.attempt(1, owner=_me())
    with Journal(orphan.conductor_journal) as journal:
        victim = {
            "pid": 4000, "create_time": 1.0, "start_ticks": 1, "role": "executor", "command": [], "host": "node9",
            "node": None,
        }  # fmt: skip
        journal.write("undo_registered", **undo_fields(UndoSpec("pause", "SIGCONT to it", victim), 0))
    close_attempt(run_of(orphan, site.settings), site.deleted.extend)
    why = "undo: host: got node9; expected one of: none; resume it with kill -CONT"
    assert json.loads(orphan.unhealed.read_text()) == {"why": why} and not orphan.closed.exists()
    assert unhealed_attempts(site.settings.attempts, site.settings.home) == {orphan.id: why}
    assert not lives(orphan) and site.deleted and Store(site.settings.results).query()
    with pytest.raises(ConfigError, match="attempt is closed"):
        refuse_closed(orphan)
    for _ in range(2):
        (line,) = site.sweep()
        head = f"{orphan.id}: orphaned attempt closed (0 processes ended); undo failed: "
        assert line == f"{head}{why} (retried by the next experiment)"
    with Journal(orphan.conductor_journal) as journal:
        journal.write("undone", fault=0, undo="SIGCONT to it", error=None)
    assert site.sweep() == [f"{orphan.id}: orphaned attempt closed (0 processes ended)"]
    assert orphan.closed.exists() and not orphan.unhealed.exists()
    assert unhealed_attempts(site.settings.attempts, site.settings.home) == {}


@only_root
def test_links_and_folders_of_another_user_are_untouched(site: Site, tmp_path: Path) -> None:
    site.settings.attempts.mkdir(parents=True)
    elsewhere, others = tmp_path / "precious", site.settings.attempts / "20261121T061502Z-000002"
    for folder in (elsewhere, others):
        folder.mkdir()
        os.utime(folder, (time.time() - 2 * MIN_AGE_S,) * 2)
    (site.settings.attempts / "20261121T061501Z-000001").symlink_to(elsewhere)
    os.chown(others, OTHER_UID, OTHER_UID)
    assert site.sweep() == []
    assert list(elsewhere.iterdir()) == [] and list(others.iterdir()) == []


@pytest.mark.parametrize("plan", ["{}", '{"schema": 3, "ord'])
def test_a_failed_cleanup_does_not_stop_the_others(site: Site, plan: str) -> None:
    broken, orphan = site.attempt(1), site.attempt(2)
    broken.plan.write_text(plan)
    lines = site.sweep()
    assert lines[0].startswith(f"{broken.id}: closing the orphaned attempt failed: ")
    assert lines[1].startswith(f"{orphan.id}: orphaned attempt closed")
    assert not lives(broken), "a recorder would hold the machine lock"
    assert not lives(orphan)


@pytest.mark.parametrize("damaged", ['{"attempt": "cut', "[]", '{"owner": null}', '{"run_id": "gone"}'])
def test_a_damaged_attempt_stops_no_experiment(site: Site, damaged: str) -> None:
    broken, orphan = site.attempt(1), site.attempt(2)
    (broken.folder / "attempt.json").write_text(damaged)
    lines = site.sweep()
    assert lines[-1].startswith(f"{orphan.id}: orphaned attempt closed")
    assert not lives(orphan)
    end_ledger(broken.ledger)


def test_an_old_unprepared_folder_is_closed(site: Site) -> None:
    young, old = (site.settings.attempts / f"20261121T06150{number}Z-00000{number}" for number in (1, 2))
    for folder in (young, old):
        prepared(folder).plan.unlink()
    os.utime(old, (time.time() - 2 * MIN_AGE_S,) * 2)
    site.sweep()
    assert json.loads((old / "closed.json").read_text()) == {"ended": [], "topics": []}
    assert not (young / "closed.json").exists()


@pytest.mark.parametrize("configuration", ["known", "refused today"])
def test_an_attempt_without_a_plan_is_cleaned_up_by_its_own_installation(site: Site, configuration: str) -> None:
    config = {**parse_configuration({}).model_dump(mode="json"), **({} if configuration == "known" else {"rpm": 78})}
    own, others = site.attempt(1, config=config), site.attempt(2, config=config, home="/elsewhere")
    for attempt in (own, others):
        attempt.plan.unlink()
        os.utime(attempt.folder, (time.time() - 2 * MIN_AGE_S,) * 2)
    (line,) = site.sweep()
    assert line.startswith(f"{own.id}: ") and not lives(own)
    assert own.closed.exists() is (configuration == "known")
    assert lives(others) and not others.closed.exists()


def test_a_partial_record_of_a_dead_writer_is_removed(site: Site) -> None:
    folder = site.settings.records / "997a6e53b98f"
    folder.mkdir(parents=True)
    dead, alive = (folder / f".20261121T061500Z-3fa9c1.json.{pid}.tmp" for pid in (DEAD["pid"], os.getpid()))
    whole = folder / "20261121T061500Z-3fa9c1.json"
    for path in (dead, alive, whole):
        path.write_text("{")
        os.utime(path, (time.time() - 2 * MIN_AGE_S,) * 2)
    site.sweep()
    assert [dead.exists(), alive.exists(), whole.exists()] == [False, True, True]


def test_only_a_process_that_runs_all_steps_is_an_owner(site: Site) -> None:
    order, attempt = Order(parse_configuration({})), Attempt(site.settings.attempts / "1")
    assert this_process() == _me() == attempt_description(attempt, order, site.settings, "17")["owner"]
    assert attempt_description(attempt, replace(order, run_id="a run of Airflow"), site.settings, "17")["owner"] is None


def _me() -> dict[str, Any]:
    ticks, boot = start_identity(os.getpid())
    return {"pid": os.getpid(), "create_time": psutil.Process().create_time(), "start_ticks": ticks, "boot": boot}
