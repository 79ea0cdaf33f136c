"""What `bench crash` kills and when: the plan, and the processes that it stands for."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psutil

from faultline.experiment.attempt import Attempt
from faultline.installation.start import TITLE
from faultline.installation.supervision import marked_processes
from faultline.installation.supervisord import Supervisor
from faultline.system.processes import read_ledger, victim_of
from faultline.system.settings import Settings

# The tasks of an experiment, in order.
STEPS = (
    "prepare",
    "provision_topics",
    "start_recorder",
    "start_generator",
    "submit_workload",
    "inject_fault",
    "await_end",
    "harvest",
    "judge",
    "teardown",
)
SERVICES = {"scheduler": "airflow-scheduler", "api_server": "airflow-api-server", "kafka": "kafka"}
TASK = "task"
# Processes of an attempt, and the boundaries at which each of them lives.
ROLES: Mapping[str, Sequence[str]] = {
    "recorder": STEPS[2:6],
    "generator": STEPS[3:6],
    "supervisor": STEPS[4:6],
}
VICTIMS = (*SERVICES, TASK, *ROLES)
RANDOM_KILLS = 55
# As long as an experiment with known truth takes, so that a random instant falls anywhere in it.
LONGEST_WAIT_S = 40.0
# A worker that waits for a task, or the supervising half of one at work.
_WORKER = f"{TITLE}LocalExecutor"


@dataclass(frozen=True)
class Kill:
    """One SIGKILL: whom, and after which step; without a step, `wait_s` seconds after the last one was survived."""

    number: int
    victim: str
    after: str | None
    wait_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.victim} {'after ' + self.after if self.after else f'at {self.wait_s:.1f} s'}"


def plan_kills(seed: int = 1, randoms: int = RANDOM_KILLS) -> list[Kill]:
    """Every victim at each step boundary at which it lives, and `randoms` random ones, in random order."""
    chance = random.Random(seed)
    kills: list[tuple[str, str | None, float]] = [(victim, step, 0.0) for victim in (*SERVICES, TASK) for step in STEPS]
    kills += [(role, step, 0.0) for role, steps in ROLES.items() for step in steps]
    kills += [(chance.choice(VICTIMS), None, chance.uniform(0.0, LONGEST_WAIT_S)) for _ in range(randoms)]
    chance.shuffle(kills)
    return [Kill(number, *kill) for number, kill in enumerate(kills)]


def is_due(tasks: Sequence[Mapping[str, Any]], after: str, since: datetime) -> bool:
    """Whether the step `after` has ended since then, well or not, and the next one has not. `tasks` are Airflow's
    instances. A judge fails whatever is not valid: to wait for a good one keeps a busy machine busy."""
    by_id = {task["task_id"]: task for task in tasks}
    ended = by_id.get(after, {})
    if ended.get("state") not in ("success", "failed") or datetime.fromisoformat(ended["end_date"]) < since:
        return False
    following = STEPS[STEPS.index(after) + 1 :][:1]
    return not following or by_id.get(following[0], {}).get("state") in (None, "scheduled", "queued", "running")


def find_victim(settings: Settings, victim: str, attempt: Attempt | None) -> psutil.Process | None:
    """The live process that `victim` means now, of these services or of this attempt; None while there is none."""
    if victim in SERVICES:
        pid = Supervisor(settings).pids().get(SERVICES[victim])
        return None if pid is None else _process(pid)
    if victim == TASK:
        running = [process for process in marked_processes(settings) if _runs_task(process)]
        return max(running, key=psutil.Process.create_time, default=None)
    if attempt is None:
        return None
    alive = [victim_of(entry) for entry in read_ledger(attempt.ledger) if entry.role == victim]
    return next((process for process in alive if process is not None), None)


def _runs_task(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        alive = process.status() != psutil.STATUS_ZOMBIE
        return bool(words) and words[0].startswith(TITLE) and not words[0].startswith(_WORKER) and alive
    return False


def _process(pid: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None
