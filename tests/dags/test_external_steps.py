"""Work of tasks of an external Airflow: tasks may be killed and retried, the work runs once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.providers.standard.triggers.external_task import DagStateTrigger
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DagRunTriggerException, TaskDeferred

from faultline.engines.spark.submission import SparkProgram
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import Places, read_plan
from faultline.experiment.config import parse_configuration
from faultline.installation import supervision
from faultline.installation.java import Java
from faultline.installation.service_users import OWNER, external_owner
from faultline.lifecycle import steps as life
from faultline.lifecycle.steps import STEPS
from faultline.orchestration.external import proxy_dags, steps, task_execution
from faultline.orchestration.external.dag_export import describe_dag
from faultline.orchestration.external.hooks import ExternalHooks
from faultline.orchestration.external.proxy_dags import TaskIncomplete, run_step
from faultline.orchestration.external.steps import (
    REPEATABLE,
    FailedError,
    serve_task,
    start_and_follow,
    task_process_of,
)
from faultline.orchestration.matrix_dag import matrix_dag
from faultline.records.store import Store
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import write_json
from faultline.system.process_ledger import end_ledger, process_of, read_ledger, spawn_detached
from faultline.system.secrets import make_secrets, write_logins
from faultline.system.settings import Settings
from faultline.system.waiting import wait_until
from tests.support.attempts import prepared
from tests.support.external_work import ATTEMPT, make_command, use_work
from tests.support.processes import words_of
from tests.unit.sample_records import sample

SECRET = "hu5h-hu5h"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    use_work(monkeypatch.setattr)
    made = Settings(tmp_path, tmp_path / "home", tmp_path / "results")
    monkeypatch.setenv("FAULTLINE_HOME", str(made.home))
    monkeypatch.setenv("FAULTLINE_RESULTS", str(made.results))
    made.home.mkdir()
    expected = {"attempt": ATTEMPT, "home": str(made.home), "run_id": "before"}
    prepared(made.attempts / ATTEMPT, facts=expected, places=Places(background="i"))
    write_json(made.home / "instance.json", {"instance": "i"})
    return made


def request(**changed: Any) -> dict[str, Any]:
    reported = {
        "place": "/dags/faultline.json",
        "prefix": "theirs_",
        "dag": "experiment",
        "run_id": "r",
        "map_index": -1,
    }
    return {**reported, "params": {}, "start_date": "2026-11-26T01:00:00+00:00", "connections": {}, **changed}


def done(settings: Settings, name: str, asked: dict[str, Any], attempt: str | None = ATTEMPT) -> dict[str, Any]:
    """Return the outcome of a task's work."""
    words: list[dict[str, Any]] = []
    serve_task(name, attempt, asked, settings, words.append)
    return words[-1]


def leave(settings: Settings, name: str, asked: dict[str, Any], attempt: str | None = ATTEMPT) -> None:
    """Start a task's work, then lose the task."""

    def gone(word: dict[str, Any]) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        serve_task(name, attempt, asked, settings, gone)


def begun(settings: Settings) -> list[str]:
    file = settings.home / "begun"
    return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


class KilledError(Exception):
    """End of a task."""


def test_a_task_that_was_killed_finds_its_work_and_all_that_it_printed(settings: Settings, tmp_path: Path) -> None:
    end = tmp_path / "end"
    for name in ("await_end", "judge"):
        asked, words = request(params={"until": str(end), "lines": 3, "value": 7}), list[dict[str, Any]]()
        end.unlink(missing_ok=True)
        leave(settings, name, asked)
        leave(settings, name, asked)
        end.touch()
        serve_task(name, ATTEMPT, asked, settings, words.append)
        assert [word["log"] for word in words[:-1]] == [f"{name} {number}" for number in range(3)]
        assert words[-1]["value"] == 7
    assert begun(settings) == ["await_end", "judge"]


def test_a_step_that_may_be_done_once_is_and_others_are_done_again(settings: Settings) -> None:
    for name in ("await_end", "judge", "plan"):
        for _ in range(2):
            assert done(settings, name, request(), None if name == "plan" else ATTEMPT)["outcome"] == "done"
    assert begun(settings) == ["await_end", "judge", "judge", "plan", "plan"]
    write_json(Attempt(settings.attempts / ATTEMPT).closed, {"ended": [], "topics": []})
    done(settings, "await_end", request())
    assert begun(settings)[-1] == "await_end", "it refuses the closed attempt itself"
    assert {name for name, step in STEPS.items() if step.is_repeatable} == REPEATABLE


@pytest.mark.parametrize(
    ("name", "outcome", "reported"),
    [
        ("judge", "error", "error"),
        ("judge", "fail", "fail"),
        ("await_end", "error", "fail"),
        ("prepare", "error", "fail"),
    ],
)
def test_a_single_step_is_not_retried(settings: Settings, name: str, outcome: str, reported: str) -> None:
    asked = request(params={"outcome": outcome})
    assert done(settings, name, asked, None if name == "prepare" else ATTEMPT)["outcome"] == reported


def test_a_crash_is_reported_and_noted_for_a_single_step(settings: Settings) -> None:
    asked = request(params={"dies": True})
    assert done(settings, "judge", asked)["outcome"] == "error"
    failures = settings.attempts / ATTEMPT / "failures.jsonl"
    assert not failures.exists()
    for _ in range(2):
        end = done(settings, "await_end", asked)
        assert end["outcome"] == "fail" and "died without an outcome" in end["why"]
    assert len(failures.read_text().splitlines()) == 1 and begun(settings) == ["judge", "await_end"]


def test_an_unread_outcome_is_not_given_to_a_cleared_run(settings: Settings) -> None:
    for name, attempt in (("judge", ATTEMPT), ("prepare", None)):
        leave(settings, name, request(), attempt)
        late = request(start_date="2026-11-26T02:00:00+00:00")
        wait_until(lambda: not task_process_of(name, attempt, late, settings).is_running(), timeout_s=120, what=name)  # noqa: B023
        done(settings, name, late, attempt)
    assert begun(settings) == ["judge", "judge", "prepare", "prepare"]


def test_the_work_of_a_run_that_was_cleared_is_ended_before_its_own_begins(settings: Settings, tmp_path: Path) -> None:
    early = request(params={"until": str(tmp_path / "never")})
    leave(settings, "prepare", early, None)
    old = task_process_of("prepare", None, early, settings)
    (entry,) = read_ledger(old.ledger)
    late = request(start_date="2026-11-26T02:00:00+00:00")
    assert done(settings, "prepare", late, None)["outcome"] == "done"
    assert process_of(entry) is None and begun(settings) == ["prepare", "prepare"]


def test_a_task_that_died_before_its_request_was_read_has_begun_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> str:
        raise KilledError

    own = task_process_of("await_end", ATTEMPT, request(), settings)
    with monkeypatch.context() as patch:
        patch.setattr(steps, "json", SimpleNamespace(loads=json.loads, dumps=killed))
        with pytest.raises(KilledError):
            start_and_follow(own, request(), settings, lambda word: None)
    wait_until(lambda: not own.is_running(), timeout_s=120, what="the end of the process")
    assert steps._final_outcome(own)["outcome"] == "error", "for a concurrent follower, which is retried"
    assert done(settings, "await_end", request())["outcome"] == "done"
    assert begun(settings) == ["await_end"] and not (settings.attempts / ATTEMPT / "failures.jsonl").exists()


def test_two_followers_of_one_process_get_its_outcome(settings: Settings, tmp_path: Path) -> None:
    """Airflow may give up a task that still waits; the retry then reads the outcome first."""
    end, first_received, ends = tmp_path / "end", threading.Event(), list[Any]()
    asked = request(params={"until": str(end), "value": 7})

    def slow(word: dict[str, Any]) -> None:
        if "log" in word:
            assert first_received.wait(120)
        ends.append(word.get("value"))

    for name in ("judge", "await_end"):
        leave(settings, name, asked)
        waits = threading.Thread(target=serve_task, args=(name, ATTEMPT, asked, settings, slow))
        waits.start()
        end.touch()
        assert done(settings, name, asked)["value"] == 7
        first_received.set()
        waits.join(120)
        assert ends.pop() == 7
        end.unlink()
        first_received.clear()
    assert begun(settings) == ["judge", "await_end"]


def test_a_check_for_the_process_is_not_taken_for_it(settings: Settings) -> None:
    own = task_process_of("judge", ATTEMPT, request(), settings)
    with own.lifetime_lock(shared=True):
        assert not own.is_running()
        threads = [threading.Thread(target=done, args=(settings, "judge", request())) for _ in range(2)]
        for one in threads:
            one.start()
        time.sleep(0.5)
        assert begun(settings) == []
    for one in threads:
        one.join(120)
    assert begun(settings) == ["judge"], "both wait for one process"


def test_unused_folders_are_removed(settings: Settings, tmp_path: Path) -> None:
    running = request(run_id="still", params={"until": str(tmp_path / "end")})
    done(settings, "plan", request(run_id="before"), None)
    leave(settings, "plan", running, None)
    folders = [task_process_of("plan", None, request(run_id=one), settings).folder for one in ("before", "still")]
    for folder in folders:
        os.utime(folder, (1.0, 1.0))
    done(settings, "plan", request(), None)
    assert [folder.exists() for folder in folders] == [False, True]
    (tmp_path / "end").touch()
    assert done(settings, "plan", running, None)["outcome"] == "done"


def test_work_is_known_by_its_airflow_and_run_and_not_by_the_try(settings: Settings) -> None:
    own = task_process_of("plan", None, request(), settings)
    assert task_process_of("plan", None, request(try_number=2), settings) == own
    for other in ({"place": "/other/faultline.json"}, {"prefix": "ours_"}, {"run_id": "s"}, {"dag": "recovery"}):
        assert task_process_of("plan", None, request(**other), settings).folder != own.folder


def test_the_teardown_ends_steps_that_go_on_and_no_process_shows_a_secret(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = {"kafka_default": json.dumps({"conn_type": "kafka", "password": SECRET})}
    leave(settings, "await_end", request(params={"until": str(tmp_path / "never")}, connections=connections))
    own = task_process_of("teardown", ATTEMPT, request(), settings)
    (entry,) = read_ledger(own.ledger)
    process = process_of(entry)
    assert process is not None
    assert SECRET not in " ".join(words_of(process.pid)) + str(process.environ())
    assert not [one for one in own.folder.iterdir() if SECRET in one.read_text()]
    monkeypatch.setattr(life, "perform", lambda step, run: {"ended": [], "topics": []})
    assert task_execution.teardown(task_execution.Task(own, request(), settings)) == {"ended": [], "topics": []}
    assert process_of(entry) is None
    monkeypatch.setattr(life, "perform", lambda step, run: {"unhealed": "no way"})
    with pytest.raises(FailedError, match=f"^{ATTEMPT}: .*no way"):
        task_execution.teardown(task_execution.Task(own, request(), settings))


def test_the_teardown_also_ends_a_step_that_is_only_starting_and_lets_none_begin(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(params={"until": str(tmp_path / "never")})
    own, step = (task_process_of(name, ATTEMPT, asked, settings) for name in ("teardown", "await_end"))
    assert steps._ensure_started(step, asked, settings) and not step.was_started()
    late, seen = task_process_of("inject_fault", ATTEMPT, asked, settings), list[bool]()

    def closes(step: Any, run: Any) -> dict[str, Any]:
        with late.lifetime_lock() as hold:
            seen.append(hold.waited_s is None)
        return {"ended": [], "topics": []}

    monkeypatch.setattr(life, "perform", closes)
    task_execution.teardown(task_execution.Task(own, asked, settings))
    assert seen == [True] and not step.is_running()
    (entry,) = read_ledger(step.ledger)
    assert entry.role == "await_end" and process_of(entry) is None


def test_a_task_waits_for_services_that_are_away(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([False, False])
    monkeypatch.setattr(steps, "are_steps_admitted", lambda _: next(looks, True))
    monkeypatch.setattr(steps, "CANCEL_CHECK_S", 0.01)
    assert done(settings, "judge", request())["outcome"] == "done"
    monkeypatch.setattr(steps, "are_steps_admitted", lambda _: False)
    monkeypatch.setattr(steps, "SERVICES_WAIT_S", 0.0)
    with pytest.raises(InfrastructureError, match="no services run here"):
        start_and_follow(task_process_of("judge", ATTEMPT, request(), settings), request(), settings, lambda word: None)
    assert begun(settings) == ["judge"]


def test_no_experiment_of_another_airflow_begins_while_one_goes_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = request(prefix="ours_"), request()
    assert done(settings, "runs", ours)["value"] == ["before"]
    owner = settings.attempts / ATTEMPT / OWNER
    owner.parent.mkdir()
    write_json(owner, {"place": theirs["place"], "prefix": "theirs_", "instance": "i"})
    assert done(settings, "runs", theirs)["value"] == ["before"]
    end = done(settings, "runs", ours)
    assert end["outcome"] == "fail" and f"{ATTEMPT}: active for DAGs theirs_" in end["why"]
    write_json(settings.home / "instance.json", {"instance": "started again"})
    assert done(settings, "runs", ours)["value"] == ["before"]
    monkeypatch.setattr(supervision, "is_airflow_running", lambda settings: True)
    assert "Faultline's own Airflow runs here" in done(settings, "runs", ours)["why"]


def hooks_of(settings: Settings, tmp_path: Path, **connections: Any) -> ExternalHooks:
    reported = {name: json.dumps(one) for name, one in connections.items()}
    return ExternalHooks(settings, request(connections=reported, dead=["gone"]), tmp_path / "cancel")


def test_an_experiment_uses_what_the_other_airflows_connections_say(settings: Settings, tmp_path: Path) -> None:
    submission = SparkProgram("driver", ("x.py",), {}, name="n", settings={}, properties=tmp_path / "p", master=None)
    spark = {"conn_type": "spark", "host": "spark://there", "port": 7077}
    assert "spark://there:7077" in hooks_of(settings, tmp_path, spark_default=spark).command(submission)
    with pytest.raises(InfrastructureError, match="theirs_spark_default: not a Spark master"):
        hooks_of(settings, tmp_path, spark_default={"host": "yarn"}).command(submission)
    with pytest.raises(ConfigError, match="Connection theirs_spark_default: missing"):
        hooks_of(settings, tmp_path).command(submission)
    (tmp_path / "f").touch(0o600)
    files = dict.fromkeys(("key_file", "known_hosts"), str(tmp_path / "f"))
    (settings.home / "ssh_hosts.json").write_text(json.dumps({"a": {"host": "h", "user": "u", **files, "port": 22}}))
    edited = {"host": "10.0.0.9", "port": 2222, "login": "me", "extra": {**files}}
    assert hooks_of(settings, tmp_path, ssh_a=edited).hosts()["a"]["host"] == "10.0.0.9"


def test_an_experiment_learns_which_runs_are_over_and_that_it_is_cancelled(settings: Settings, tmp_path: Path) -> None:
    hooks = hooks_of(settings, tmp_path)
    assert [hooks.is_run_active(one) for one in ("gone", "r", "another")] == [False, False, True]
    assert not hooks.is_cancelled()
    (tmp_path / "cancel").touch()
    assert hooks.is_cancelled()


# ---- The real work ----


def of_real_work(settings: Settings, name: str, asked: dict[str, Any], attempt: str | None = None) -> dict[str, Any]:
    """Return the outcome, in this process."""
    reported: dict[str, Any] = json.loads(json.dumps(asked, default=str))
    return task_execution.execute(
        task_execution.Task(task_process_of(name, attempt, reported, settings), reported, settings)
    )


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (task_execution, life):
        monkeypatch.setattr(
            module, "find_java", lambda _: Java(Path("/nowhere"), Path("/nowhere/bin/java"), "17.0.1", True)
        )
    monkeypatch.setattr(task_execution, "service_environment", lambda *_: {})


def test_prepare_makes_an_attempt_of_this_airflow(settings: Settings, java: None) -> None:
    write_logins(settings.secrets, make_secrets(settings.secrets))
    params = {"workload": "word_count", "series": "s", "build": "b"}
    end = of_real_work(settings, "prepare", request(params=params))
    assert end["outcome"] == "done", end
    made = Attempt(settings.attempts / end["value"])
    assert read_plan(made).order.config["workload"] == "word_count"
    assert made.read()["run_id"] == "r" and read_plan(made).order.sweep_id
    assert external_owner(made, settings) == ("/dags/faultline.json", "theirs_")


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (
            ConfigError("rate: too high"),
            {"outcome": "skip", "why": "refused: rate: too high", "refused": "rate: too high"},
        ),
        (
            life.RefusedError(InfrastructureError("disk: full"), sample(status="failed", reasons=["disk: full"])),
            {"outcome": "skip", "why": "refused: disk: full", "refused": "disk: full"},
        ),
        (life.AlreadyMeasuredError("has a record"), {"outcome": "skip", "why": "has a record", "refused": None}),
        (InfrastructureError("away"), {"outcome": "error", "why": "InfrastructureError: away"}),
    ],
)
def test_what_prepare_refused_is_the_reason_for_which_the_run_fails(
    settings: Settings, java: None, monkeypatch: pytest.MonkeyPatch, error: Exception, end: dict[str, Any]
) -> None:
    def refuses(*_: Any) -> None:
        raise error

    monkeypatch.setattr(life, "prepare", refuses)
    assert of_real_work(settings, "prepare", request()) == end
    if end["outcome"] != "skip":
        return
    context = context_of()
    with pytest.raises(AirflowSkipException):
        proxy_dags._result(context, end)
    require = proxy_dags.FailureTask(task_id="require_accepted", reason=None)
    if end["refused"] is None:
        require.execute(context)
        return
    with pytest.raises(AirflowFailException, match=end["refused"]):
        require.execute(context)


def test_a_form_that_is_wrong_is_refused(settings: Settings, java: None) -> None:
    end = of_real_work(settings, "prepare", request(params={"workloda": "word_count"}))
    assert end["outcome"] == "skip" and "did you mean workload?" in end["refused"]


def test_a_step_after_a_restart_of_the_services_fails_and_is_noted(settings: Settings, java: None) -> None:
    write_json(settings.home / "instance.json", {"instance": "of the next start"})
    end = of_real_work(settings, "inject_fault", request(), ATTEMPT)
    assert "services restarted" in end["why"]
    noted = (settings.attempts / ATTEMPT / "failures.jsonl").read_text()
    assert "InfrastructureError" in noted and "inject_fault" in noted


def test_the_judge_fails_a_run_that_is_not_valid(
    settings: Settings, java: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for status, reported in (("valid", "done"), ("invalid", "fail")):
        record = sample(status=status, reasons=[] if status == "valid" else ["schedule-lag: late"])
        monkeypatch.setattr(life, "perform", lambda step, run: record)  # noqa: B023
        end = of_real_work(settings, "judge", request(), ATTEMPT)
        assert end["outcome"] == reported and (end.get("value") or end["why"]).endswith(
            f"{record.attempt}.json" if reported == "done" else "schedule-lag: late"
        )
        assert capsys.readouterr().out


def test_a_sweep_is_planned_and_reported_at_its_end(
    settings: Settings, java: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    form = describe_dag(matrix_dag("recovery"), [])["params"]
    params = {name: one["value"] for name, one in form.items()} | {"preset": "smoke", "series": "s", "build": "b"}
    asked = request(dag="recovery", run_id="manual__1", params=params)
    jobs = list[Any]()
    monkeypatch.setattr(ExternalHooks, "batch", lambda self, job: jobs.append(job))
    assert of_real_work(settings, "aggregate", asked)["outcome"] == "done"
    assert capsys.readouterr().out == "no plan\n" and len(jobs) == 1
    planned = of_real_work(settings, "plan", asked)
    assert planned["outcome"] == "done", planned
    reported = capsys.readouterr().out
    first = planned["value"][0]
    assert {"trigger_run_id", "conf", "max_measurements", "cell"} == set(first) and "smoke" in reported
    assert first["conf"]["series"] == "s" and first["conf"]["parent_run_id"] == "manual__1"
    assert of_real_work(settings, "aggregate", asked)["outcome"] == "done"
    assert f"{len(planned['value'])}" in capsys.readouterr().out
    params["preset"] = "smoek"
    assert of_real_work(settings, "plan", asked)["outcome"] == "fail"


class Ti:
    """Fake task instance."""

    map_index, try_number, max_tries = -1, 1, 9

    def __init__(self, alive: bool) -> None:
        self.alive, self.kept = alive, dict[str, Any]()

    def get_dr_count(self, *, dag_id: str, run_ids: list[str], states: list[str]) -> int:
        assert dag_id.startswith("theirs_")
        return int(self.alive)

    def xcom_push(self, key: str, value: Any) -> None:
        self.kept[key] = value

    def xcom_pull(self, *, key: str, **_: Any) -> Any:
        return self.kept.get(key)


def context_of(*, alive: bool = True, **params: Any) -> dict[str, Any]:
    run, dag = SimpleNamespace(start_date=datetime.now(UTC)), SimpleNamespace(dag_id="theirs_experiment")
    return {"ti": Ti(alive), "dag_run": run, "dag": dag, "run_id": "r", "params": params}


@pytest.fixture
def here(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stored installation of the DAG folder."""
    reported = {"prefix": "theirs_", "home": str(settings.home), "results": str(settings.results), "queue": "faultline"}
    reported |= {"command": str(settings.home / "fake"), "host": "there"}
    monkeypatch.setattr(proxy_dags, "installation", lambda: reported)
    return reported


def answers(here: dict[str, Any], *words: dict[str, Any], status: int = 0) -> None:
    """Replace the command by one that reads the request and replies."""
    lines = "".join(f"echo '{json.dumps(word)}'\n" for word in words)
    Path(here["command"]).write_text(f"#!/bin/sh\ncat >/dev/null\n{lines}exit {status}\n")
    Path(here["command"]).chmod(0o700)


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ({"outcome": "skip", "why": "as given", "refused": "too fast"}, AirflowSkipException),
        ({"outcome": "fail", "why": "as given"}, AirflowFailException),
        ({"outcome": "error", "why": "as given"}, TaskIncomplete),
        ({"log": "as given"}, TaskIncomplete),
    ],
)
def test_a_task_ends_as_its_work_did(here: dict[str, Any], end: dict[str, Any], error: type[Exception]) -> None:
    answers(here, {"log": "a line"}, end, status=3)
    context = context_of()
    with pytest.raises(error, match="as given"):
        run_step(context, "judge", ATTEMPT)
    assert context["ti"].kept == ({"refused": "too fast"} if "refused" in end else {})


def test_a_task_passes_the_stop_of_the_sweep_to_its_work(here: dict[str, Any], tmp_path: Path) -> None:
    cancel = tmp_path / "cancel"
    answers(here, {"wait": str(cancel)}, {"outcome": "done", "value": 5})
    for context, stopped in (
        (context_of(alive=False), False),  # one that no sweep asked for
        (context_of(alive=True, matrix="recovery", parent_run_id="p"), False),
        (context_of(alive=False, matrix="recovery", parent_run_id="p"), True),
    ):
        assert run_step(context, "await_end", ATTEMPT) == 5
        assert cancel.exists() is stopped


def measured(settings: Settings, minute: int, status: str) -> None:
    """Return a record of the cell."""
    record = sample(status=status, reasons=[f"{status} {minute}"], attempt=f"20261126T01{minute:02d}00Z-00000{minute}")
    Store(settings.results).write(record)


@pytest.fixture
def cell(here: dict[str, Any], settings: Settings, monkeypatch: pytest.MonkeyPatch) -> proxy_dags.ProxyRunExperiment:
    """Cell of a sweep without records; this process replies to its queries."""

    def answered(context: Any, name: str, **asked: Any) -> Any:
        reported = json.loads(json.dumps({**proxy_dags._run_information(context, here), **asked}, default=str))
        return proxy_dags._result(context, done(settings, name, reported, None))

    monkeypatch.setattr(proxy_dags, "run_step", answered)
    config = parse_configuration({}).model_dump(mode="json")
    conf = {**config, "repetition": 0, "series": "b1", "sweep_id": "s1"}
    return proxy_dags.ProxyRunExperiment(
        task_id="run_experiment", trigger_run_id="t", conf=conf, max_measurements=2, cell="c", retries=9
    )


EVENT = ("", {"run_ids": ["t"]})


def test_a_cell_is_measured_waited_for_or_left(cell: proxy_dags.ProxyRunExperiment, settings: Settings) -> None:
    with pytest.raises(DagRunTriggerException) as triggered:
        cell.execute(context_of(alive=False))
    assert triggered.value.trigger_dag_id == "theirs_experiment" and triggered.value.dag_run_id == "t"
    with pytest.raises(TaskDeferred) as deferred:
        cell.execute(context_of(alive=True))
    waits = deferred.value.trigger
    assert isinstance(waits, DagStateTrigger) and (waits.dag_id, waits.run_ids) == ("theirs_experiment", ["t"])
    assert deferred.value.method_name == "execute_complete"
    measured(settings, 1, "valid")
    context = context_of(alive=False)
    cell.execute(context)
    cell.execute_complete(context, EVENT)


def test_the_outcome_of_a_cell_goes_to_the_try_that_measured_it(
    cell: proxy_dags.ProxyRunExperiment, settings: Settings
) -> None:
    context = context_of(alive=True)
    measured(settings, 1, "failed")
    with pytest.raises(TaskDeferred):
        cell.execute(context)
    assert context["ti"].kept["known"] == ["20261126T010100Z-000001"]
    with pytest.raises(TaskIncomplete, match="t: no record"):
        cell.execute_complete(context, EVENT)
    measured(settings, 2, "invalid")
    with pytest.raises(TaskIncomplete, match="InvalidMeasurement: .*invalid 2"):
        cell.execute_complete(context, EVENT)
    measured(settings, 3, "invalid")
    context["ti"].try_number = 2
    with pytest.raises(AirflowFailException, match="given up after 2 measurements"):
        cell.execute_complete(context, EVENT)
    # Clearing adds to the tries that there may be.
    context["ti"].max_tries = 10
    with pytest.raises(TaskIncomplete, match="invalid 3"):
        cell.execute_complete(context, EVENT)


def test_a_task_on_another_host_or_of_another_user_fails(here: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(AirflowFailException, match=f"owned by user {uid}"):
        run_step(context_of(), "judge", ATTEMPT)
    here["home"] = "/nowhere"
    with pytest.raises(AirflowFailException, match="/nowhere not found; .*queue faultline"):
        run_step(context_of(), "judge", ATTEMPT)


def test_a_killed_task_leaves_its_work_without_followers(
    here: dict[str, Any], settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_command(tmp_path)
    here["command"], end = str(tmp_path / "faultline"), tmp_path / "end"
    context = context_of(until=str(end), value=7, matrix="recovery", parent_run_id="p")

    def killed(*given: Any) -> bool:
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proxy_dags, "is_parent_stopped", killed)
        with pytest.raises(KilledError):
            run_step(context, "await_end", ATTEMPT)
    waits = [one for one in psutil.Process().children() if "step" in " ".join(words_of(one.pid))]
    assert not waits
    threading.Timer(0.5, end.touch).start()
    assert run_step(context, "await_end", ATTEMPT) == 7
    assert begun(settings) == ["await_end"] and "await_end 0" in capsys.readouterr().out


def test_the_work_loads_no_airflow() -> None:
    code = "import sys, faultline.orchestration.external.task_execution; print('airflow' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_of_an_attempt_whose_plan_is_damaged_the_processes_are_ended_all_the_same(
    settings: Settings, tmp_path: Path
) -> None:
    attempt, asked, out = Attempt(settings.attempts / ATTEMPT), request(), tmp_path / "out"
    attempt.plan.write_text("{")
    command = [sys.executable, "-c", "import time; time.sleep(900)"]
    spawn_detached(
        command, role="recorder", attempt=ATTEMPT, ledger=attempt.ledger, stdout=out, stderr=out, cwd=tmp_path
    )
    try:
        with pytest.raises(InfrastructureError, match="plan.json"):
            task_execution.teardown(
                task_execution.Task(task_process_of("teardown", ATTEMPT, asked, settings), asked, settings)
            )
        assert process_of(read_ledger(attempt.ledger)[0]) is None
    finally:
        end_ledger(attempt.ledger)
