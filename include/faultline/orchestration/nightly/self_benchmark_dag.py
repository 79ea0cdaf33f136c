"""The DAG `nightly_speed`: Faultline's own benchmarks in their quick form, held against the nights before.

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

# Those of `./faultline bench` that take minutes in their quick form and say something on one machine.
BENCHMARKS = ("generator", "overhead", "recorder", "harvest", "aggregate", "page")
# They measure windows themselves; beside the rest none opens.
MEASURING_BENCHMARKS = ("overhead", "recorder")
BENCHMARK_TIMEOUT_S = 3600.0
# An experiment that runs may take hours, and others may be queued behind it.
IDLE_TIMEOUT_S = 12 * 3600.0
POLL_S = 10.0
# From SIGTERM to SIGKILL.
TERMINATION_GRACE_S = 10.0
DOC = """\
### Faultline's own speed, each night

Runs the benchmarks of `./faultline bench` in their quick form, one after another, when no experiment is queued or
running; keeps what they gave in `results/speed/`, and holds the night against up to `baseline_nights` nights before it
of one build on a machine like this one. The task `no_slowdown` **fails when a figure became worse**, and the note says
which.

Paused at first. Schedule (cron, UTC): environment variable `FAULTLINE_SPEED_SCHEDULE`, read when services start.
"""


def speed_dag() -> DAG:
    """Builds the DAG. Raises ConfigError for a schedule that is none."""
    with DAG(
        SPEED,
        schedule=CronTriggerTimetable(speed_schedule(), timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        max_active_tasks=1,
        is_paused_upon_creation=True,
        params=speed_params(),
        doc_md=DOC,
        description="Faultline's own benchmarks, held against the nights before",
        tags=["faultline", "nightly"],
        render_template_as_native_obj=True,
    ) as dag:
        measured = measure.expand(name=list(BENCHMARKS))
        compared = compare_speed(measured)
        chain(measured, compared, no_slowdown(compared))
    return dag


def speed_params() -> dict[str, Param]:
    """The form."""
    return {"baseline_nights": integer_param("baseline_nights", 7, 1, 365, "Nights that a night is held against.")}


@task(retries=0)
def measure(name: str) -> dict[str, Any]:
    """Runs one benchmark by the command line, as a person would; returns its answer."""
    from airflow.sdk.exceptions import AirflowFailException

    settings = load_settings()
    wait_until(
        is_idle,
        timeout_s=IDLE_TIMEOUT_S,
        every_s=POLL_S,
        what=f"bench {name}: an end of the experiments that are queued or running",
    )
    with contextlib.nullcontext() if name in MEASURING_BENCHMARKS else hold_measurement_lock(settings.window_lock):
        status, output = run_process_group(
            [sys.executable, "-P", "-m", "faultline", "bench", name, "--quick", "--json"],
            clean_environment(installation_environment(settings)),
        )
    if status:
        raise AirflowFailException(f"bench {name}: ended with status {status}; its words stand above")
    answer: dict[str, Any] = json.loads(output)
    return answer


def is_idle() -> bool:
    """Whether no experiment is queued or running, whoever asked for it."""
    running = get_current_context()["ti"].get_dr_count(dag_id=EXPERIMENT, states=["queued", "running"])
    return not running


def run_process_group(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Status and output of a command. Whatever ends the wait ends all that it started, too."""
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
    """Keeps the night in `results/speed/`, and puts the verdict on it into the run's note."""
    from benchmarks.own_speed import as_json, judge_speed, read_runs
    from faultline.experiment.attempt import write_json
    from faultline.lifecycle.environment import git_commit, installed_build
    from faultline.orchestration.airflow_api import write_note
    from faultline.reports.notes import escape_markdown

    context, settings = get_current_context(), load_settings()
    outcomes = [one for one in measured if one]
    failures = {name: "failed" for name in BENCHMARKS if name not in {one["name"] for one in outcomes}}
    night = nightly_date()
    folder = settings.results / "speed"
    folder.mkdir(parents=True, exist_ok=True)
    kept = as_json(night, git_commit(settings.root) or installed_build(settings), outcomes, failures)
    write_json(folder / f"{night.replace(':', '')}.json", kept)
    nights = read_runs(folder)
    own = next(one for one in nights if one.date == night)
    verdict = judge_speed(own, nights, int(context["params"]["baseline_nights"]))
    lines = [verdict.summary, *verdict.reasons, *([verdict.problem] if verdict.problem else [])]
    lines += [f"bench {name} gave no figures" for name in own.failed]
    print(*lines, sep="\n")
    if problem := write_note(
        settings, context["dag"].dag_id, context["run_id"], "\n\n".join(map(escape_markdown, lines))
    ):
        print(problem)
    return {"reasons": list(verdict.reasons), "problem": verdict.problem, "failed": list(own.failed)}


@task
def no_slowdown(verdict: dict[str, Any]) -> None:
    """Fails when a figure became worse or a benchmark gave none; is skipped when there was nothing to compare."""
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    problems = [*verdict["reasons"], *(f"bench {name} gave no figures" for name in verdict["failed"])]
    if problems:
        raise AirflowFailException("; ".join(problems))
    if verdict["problem"]:
        raise AirflowSkipException(verdict["problem"])
