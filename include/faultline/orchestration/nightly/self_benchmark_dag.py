"""DAG `nightly_speed`: quick self-benchmarks, compared with earlier nightly runs.

measure (mapped over the benchmarks) -> compare_speed -> no_slowdown
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, Param, TriggerRule, chain, get_current_context, task

from faultline.experiment.cell import EXPERIMENT
from faultline.experiment.nightly_file import SPEED, speed_schedule
from faultline.installation.airflow import installation_environment
from faultline.orchestration.matrix_dag import integer_param
from faultline.orchestration.nightly.dag_factory import nightly_date
from faultline.system.child_environment import clean_environment
from faultline.system.locks import hold_measurement_lock
from faultline.system.settings import load_settings
from faultline.system.waiting import wait_until

# Benchmarks of `./faultline bench` whose quick form takes minutes and needs one machine.
BENCHMARKS = ("generator", "overhead", "recorder", "harvest", "aggregate", "page")
# These take the measurement lock themselves; the task takes it for the others.
MEASURING_BENCHMARKS = ("overhead", "recorder")
BENCHMARK_TIMEOUT_S = 3600.0
# Timeout for the end of experiments, which may take hours, with more in the queue.
IDLE_TIMEOUT_S = 12 * 3600.0
POLL_S = 10.0
# Time from SIGTERM to SIGKILL.
TERMINATION_GRACE_S = 10.0
DOC = """\
### Nightly self-benchmark

Runs the benchmarks of `./faultline bench` in their quick form, one after another, while no experiment is queued or
running. Stores the figures in `results/speed/`, and compares them with up to `baseline_nights` earlier runs of one
build on a similar machine. The task `no_slowdown` **fails if a figure became worse**; the note names it.

Paused initially. Schedule (cron, UTC): environment variable `FAULTLINE_SPEED_SCHEDULE`, read when services start.
"""


def speed_dag() -> DAG:
    """Return the DAG.

    Raises ConfigError for an invalid schedule.
    """
    with DAG(
        SPEED,
        schedule=CronTriggerTimetable(speed_schedule(), timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        max_active_tasks=1,
        is_paused_upon_creation=True,
        params=speed_params(),
        doc_md=DOC,
        description="Self-benchmark, compared with earlier nightly runs",
        tags=["faultline", "nightly"],
        render_template_as_native_obj=True,
    ) as dag:
        measured = measure.expand(name=list(BENCHMARKS))
        compared = compare_speed(measured)
        chain(measured, compared, no_slowdown(compared))
    return dag


def speed_params() -> dict[str, Param]:
    """Return the form."""
    return {"baseline_nights": integer_param("baseline_nights", 7, 1, 365, "Earlier nightly runs to compare with.")}


@task(retries=0)
def measure(name: str) -> dict[str, Any]:
    """Run one benchmark through the command line and return its JSON output."""
    from airflow.sdk.exceptions import AirflowFailException

    settings = load_settings()
    wait_until(
        is_idle,
        timeout_s=IDLE_TIMEOUT_S,
        every_s=POLL_S,
        what=f"bench {name}: the end of active experiments",
    )
    with contextlib.nullcontext() if name in MEASURING_BENCHMARKS else hold_measurement_lock(settings.window_lock):
        status, output = run_process_group(
            [sys.executable, "-P", "-m", "faultline", "bench", name, "--quick", "--json"],
            clean_environment(installation_environment(settings)),
        )
    if status:
        raise AirflowFailException(f"bench {name}: failed with status {status}; see its output above")
    answer: dict[str, Any] = json.loads(output)
    return answer


def is_idle() -> bool:
    """Return whether no experiment is queued or running."""
    running = get_current_context()["ti"].get_dr_count(dag_id=EXPERIMENT, states=["queued", "running"])
    return not running


def run_process_group(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Run a command; return its status and output, and end its process group afterwards."""
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        try:
            output, _ = process.communicate(timeout=BENCHMARK_TIMEOUT_S)
            return process.returncode, output
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(TERMINATION_GRACE_S)


@task(trigger_rule=TriggerRule.ALL_DONE)
def compare_speed(measured: Any) -> dict[str, Any]:
    """Store the figures in `results/speed/` and set the run's note to their verdict."""
    from benchmarks.own_speed import as_json, judge_speed, read_runs
    from faultline.experiment.attempt import write_json
    from faultline.lifecycle.environment import git_commit, installed_build
    from faultline.orchestration.airflow_api import write_note
    from faultline.reports.notes import escape_markdown

    context, settings = get_current_context(), load_settings()
    outcomes = [one for one in measured if one]
    failures = {name: "failed" for name in BENCHMARKS if name not in {one["name"] for one in outcomes}}
    date = nightly_date()
    folder = settings.results / "speed"
    folder.mkdir(parents=True, exist_ok=True)
    stored = as_json(date, git_commit(settings.root) or installed_build(settings), outcomes, failures)
    write_json(folder / f"{date.replace(':', '')}.json", stored)
    nights = read_runs(folder)
    own = next(one for one in nights if one.date == date)
    verdict = judge_speed(own, nights, int(context["params"]["baseline_nights"]))
    lines = [verdict.summary, *verdict.reasons, *([verdict.problem] if verdict.problem else [])]
    lines += [f"bench {name}: no figures" for name in own.failed]
    print(*lines, sep="\n")
    if problem := write_note(
        settings, context["dag"].dag_id, context["run_id"], "\n\n".join(map(escape_markdown, lines))
    ):
        print(problem)
    return {"reasons": list(verdict.reasons), "problem": verdict.problem, "failed": list(own.failed)}


@task
def no_slowdown(verdict: dict[str, Any]) -> None:
    """Fail if a figure became worse or a benchmark failed; skipped without comparable runs."""
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    problems = [*verdict["reasons"], *(f"bench {name}: no figures" for name in verdict["failed"])]
    if problems:
        raise AirflowFailException("; ".join(problems))
    if verdict["problem"]:
        raise AirflowSkipException(verdict["problem"])
