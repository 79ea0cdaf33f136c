"""The conductor and the thin tasks of another Airflow: tasks come and go, the work is done once."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import psutil
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from hypothesis import given
from hypothesis import settings as bounds
from hypothesis import strategies as some

from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.config import parse_configuration
from faultline.installation.targets.said import Said
from faultline.orchestration import connections
from faultline.orchestration.guest import thin_dags
from faultline.orchestration.guest import work as real
from faultline.orchestration.guest.conductor import ONCE, key_of, listening
from faultline.orchestration.guest.guest_run import GUEST_RUN, is_guest_run
from faultline.orchestration.guest.job import MOST_UNHEARD, Heard, Job
from faultline.orchestration.guest.thin_dags import NotDone, conduct
from faultline.orchestration.targets.connections import prepare_target
from faultline.system.errors import ConfigError
from faultline.system.processes import birth, live_process
from faultline.system.settings import Settings
from faultline.system.target import Target, keep
from faultline.system.waiting import wait_until
from tests.support.guest_work import work

ATTEMPT = "20261126T010000Z-abcdef"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "home").mkdir()
    return Settings(tmp_path, tmp_path / "home", tmp_path / "results")


@pytest.fixture
def here(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the folder of DAGs says of the conductor."""
    told = {"prefix": "theirs_", "home": str(settings.home), "socket": str(settings.conductor_socket)}
    told |= {"queue": "faultline", "host": "there"}
    monkeypatch.setattr(thin_dags, "place", lambda: told)
    monkeypatch.setattr(thin_dags, "AWAY_S", 0.0)
    return told


@pytest.fixture
def conductor(settings: Settings, here: dict[str, Any]) -> Iterator[Any]:
    with listening(settings, work) as (server, made):
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


class Ti:
    """Stands for Airflow's task instance."""

    task_id, map_index, try_number, max_tries = "judge", -1, 1, 3

    def __init__(self, task: str) -> None:
        self.task_id = task
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}

    def get_dr_count(self, **given: Any) -> int:
        self.asked.append(given)
        return len(self.asked)

    def get_dagrun_state(self, **given: Any) -> Any:
        self.asked.append(given)
        return SimpleNamespace(value="running")

    def xcom_pull(self, **given: Any) -> Any:
        return self.answers.get(given["key"])

    def xcom_push(self, key: str, value: Any) -> None:
        self.answers[key] = value


def context_of(task: str, **params: Any) -> dict[str, Any]:
    run = SimpleNamespace(run_after=datetime.now(UTC), start_date=datetime.now(UTC))
    dag = SimpleNamespace(dag_id="theirs_experiment")
    return {"ti": Ti(task), "dag_run": run, "dag": dag, "run_id": "r", "params": params, "logical_date": None}


def begun(tmp_path: Path) -> list[str]:
    file = tmp_path / "begun"
    return file.read_text().split() if file.exists() else []


def leave_in_the_middle(here: dict[str, Any], context: dict[str, Any], request: dict[str, Any]) -> None:
    """What a thin task does that is killed while its work waits for an answer."""
    with socket.socket(socket.AF_UNIX) as talk, talk.makefile("rw") as stream:
        talk.connect(here["socket"])
        stream.write(json.dumps({**thin_dags._about(context, here), **request}, default=str) + "\n")
        stream.flush()
        while "ask" not in json.loads(stream.readline()):
            pass


def await_end_of(job: Job) -> None:
    """Without a look at how it ended, which only one may have."""
    wait_until(lambda: not psutil.pid_exists(job.process.pid or 0), timeout_s=120, what="the end of the work")


def test_work_prints_asks_airflow_under_the_prefix_and_returns_its_value(
    conductor: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = context_of("judge", begun=str(tmp_path / "begun"), asks=2)
    assert conduct(context, {"arguments": [ATTEMPT]})["value"] == [1, 2]
    assert context["ti"].asked == [{"dag_id": "theirs_experiment", "run_ids": ["r"]}] * 2
    assert "begun judge" in capsys.readouterr().out


def test_a_task_that_was_killed_finds_its_work_again(conductor: Any, here: dict[str, Any], tmp_path: Path) -> None:
    context, request = context_of("judge", begun=str(tmp_path / "begun"), asks=3), {"arguments": [ATTEMPT]}
    leave_in_the_middle(here, context, request)
    leave_in_the_middle(here, context, request)
    assert conduct(context, request)["value"] == [1, 2, 3]
    assert begun(tmp_path) == ["judge"]


def test_a_task_that_comes_anew_takes_the_place_of_one_that_hangs(
    conductor: Any, here: dict[str, Any], tmp_path: Path
) -> None:
    context, request = context_of("judge", begun=str(tmp_path / "begun"), asks=1), {"arguments": [ATTEMPT]}
    with socket.socket(socket.AF_UNIX) as hangs, hangs.makefile("rw") as stream:
        hangs.connect(here["socket"])
        stream.write(json.dumps({**thin_dags._about(context, here), **request}, default=str) + "\n")
        stream.flush()
        while "ask" not in json.loads(stream.readline()):
            pass
        assert conduct(context, request)["value"] == [1]
        assert stream.readline() == ""
    assert begun(tmp_path) == ["judge"]


def test_a_measuring_step_is_done_once_and_another_one_whenever_it_is_asked_for(conductor: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "begun")
    assert conduct(context_of("prepare", begun=file, value=ATTEMPT), {})["value"] == ATTEMPT
    step, again = context_of("await_end", begun=file), context_of("judge", begun=file)
    assert "await_end" in ONCE and "judge" not in ONCE
    for one in (step, step, again, again):
        conduct(one, {"arguments": [ATTEMPT]})
    assert begun(tmp_path) == ["prepare", "await_end", "judge", "judge"]


def test_a_step_of_an_attempt_from_before_this_conductor_is_lost_and_noted(
    conductor: Any, settings: Settings, tmp_path: Path
) -> None:
    with pytest.raises(AirflowFailException, match="the conductor was started anew"):
        conduct(context_of("await_end", begun=str(tmp_path / "begun")), {"arguments": [ATTEMPT]})
    noted = (settings.attempts / ATTEMPT / "failures.jsonl").read_text()
    assert "InfrastructureError" in noted and "await_end" in noted
    assert begun(tmp_path) == []


def test_the_teardown_ends_what_still_waits(conductor: Any, here: dict[str, Any], tmp_path: Path) -> None:
    file = str(tmp_path / "begun")
    conduct(context_of("prepare", begun=file, value=ATTEMPT), {})
    waits = context_of("await_end", begun=file, asks=1)
    leave_in_the_middle(here, waits, {"arguments": [ATTEMPT]})
    (job,) = [one for key, one in conductor._jobs.items() if "await_end" in key.task]
    conduct(context_of("teardown", begun=file), {"arguments": [ATTEMPT]})
    await_end_of(job)
    assert not conductor._jobs
    with pytest.raises(AirflowFailException):
        conduct(waits, {"arguments": [ATTEMPT]})


@pytest.mark.parametrize(
    ("task", "outcome", "error"),
    [
        ("judge", "skip", AirflowSkipException),
        ("judge", "fail", AirflowFailException),
        ("judge", "error", NotDone),
        ("prepare", "error", AirflowFailException),
    ],
)
def test_a_task_ends_as_its_work_did(conductor: Any, tmp_path: Path, task: str, outcome: str, error: Any) -> None:
    with pytest.raises(error, match="as it was told"):
        conduct(context_of(task, begun=str(tmp_path / "begun"), outcome=outcome), {})


def test_work_that_dies_is_told(conductor: Any, tmp_path: Path) -> None:
    with pytest.raises(NotDone, match=r"ended without a word \(7\)"):
        conduct(context_of("judge", begun=str(tmp_path / "begun"), dies=True), {"arguments": [ATTEMPT]})


def test_an_outcome_that_nobody_heard_is_not_given_to_a_run_that_was_cleared(
    conductor: Any, here: dict[str, Any], tmp_path: Path
) -> None:
    context = context_of("judge", begun=str(tmp_path / "begun"), asks=1)
    leave_in_the_middle(here, context, {"arguments": [ATTEMPT]})
    (before,) = conductor._jobs.values()
    context["dag_run"].start_date += timedelta(minutes=1)  # as Airflow does
    conduct(context, {"arguments": [ATTEMPT]})
    assert begun(tmp_path) == ["judge", "judge"]
    await_end_of(before)  # nobody comes for it any more


def test_how_a_cell_ended_is_told_to_the_try_that_measured_it(
    conductor: Any, here: dict[str, Any], tmp_path: Path
) -> None:
    context = context_of("run_experiment", begun=str(tmp_path / "begun"), asks=1)
    leave_in_the_middle(here, context, {"ended": ["r"]})
    conduct(context, {"ended": ["r"]})
    assert begun(tmp_path) == ["run_experiment"]
    leave_in_the_middle(here, context, {"ended": ["r"]})
    context["ti"].try_number = 2
    conduct(context, {"ended": ["r"]})
    assert begun(tmp_path) == ["run_experiment"] * 3


@pytest.mark.parametrize("other", [{"prefix": "ours_"}, {"place": "/opt/dags/faultline.json"}])
def test_work_of_two_airflows_or_prefixes_is_told_apart(here: dict[str, Any], other: dict[str, str]) -> None:
    request = thin_dags._about(context_of("judge"), here)
    assert key_of(request) == key_of(dict(request))
    assert key_of(request) != key_of({**request, **other})


def test_no_experiment_of_another_guest_begins_while_one_goes_on(
    conductor: Any, here: dict[str, Any], settings: Settings, tmp_path: Path
) -> None:
    def prepare() -> Any:
        return conduct(context_of("prepare", begun=str(tmp_path / "begun"), value=ATTEMPT), {})["value"]

    assert prepare() == prepare() == ATTEMPT
    here["prefix"] = "ours_"
    with pytest.raises(AirflowFailException, match=f"{ATTEMPT}: goes on here for DAGs theirs_"):
        prepare()
    attempt = Attempt(settings.attempts / ATTEMPT)
    attempt.folder.mkdir(parents=True)
    write_json(attempt.closed, {"ended": [], "topics": []})
    assert prepare() == ATTEMPT


def test_what_breaks_inside_the_conductor_is_told_to_the_task(
    conductor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(request: dict[str, Any]) -> Job:
        raise KeyError("broken")

    monkeypatch.setattr(conductor, "_begin", breaks)
    with pytest.raises(NotDone, match="conductor: KeyError: 'broken'"):
        conduct(context_of("judge", begun=str(tmp_path / "begun")), {"arguments": [ATTEMPT]})
    assert "Traceback" in capsys.readouterr().err


def test_a_task_waits_for_a_conductor_that_is_away(
    settings: Settings, here: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thin_dags, "AWAY_S", 60.0)
    waits, found = threading.Event(), list[Any]()
    monkeypatch.setattr(thin_dags, "_say_that_it_waits", lambda state: waits.set())
    context = context_of("judge", begun=str(tmp_path / "begun"), value=7)
    task = threading.Thread(target=lambda: found.append(conduct(context, {"arguments": [ATTEMPT]})["value"]))
    task.start()
    assert waits.wait(120)
    with listening(settings, work) as (server, _):
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        task.join(120)
        server.shutdown()
        thread.join()
    assert found == [7]


def send_request(stream: IO[str], context: dict[str, Any], here: dict[str, Any]) -> None:
    stream.write(json.dumps({**thin_dags._about(context, here), "arguments": [ATTEMPT]}, default=str) + "\n")
    stream.flush()


def test_work_that_dies_with_its_question_open_is_told(conductor: Any, here: dict[str, Any], tmp_path: Path) -> None:
    context = context_of("judge", begun=str(tmp_path / "begun"), dies="asking")
    with socket.socket(socket.AF_UNIX) as talk, talk.makefile("rw") as stream:
        talk.connect(here["socket"])
        send_request(stream, context, here)
        while "ask" not in json.loads(stream.readline()):
            pass
        (job,) = conductor._jobs.values()
        await_end_of(job)
        stream.write('{"answer": 1}\n')
        stream.flush()
        end = json.loads(stream.readline())
    assert end["outcome"] == "error" and "ended without a word (7)" in end["why"]


def test_work_that_nobody_hears_goes_on_to_its_end(
    conductor: Any, here: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = context_of("judge", begun=str(tmp_path / "begun"), lines=3 * MOST_UNHEARD)
    with socket.socket(socket.AF_UNIX) as talk, talk.makefile("rw") as stream:
        talk.connect(here["socket"])
        send_request(stream, context, here)
        stream.readline()
    (job,) = conductor._jobs.values()
    await_end_of(job)
    conduct(context, {"arguments": [ATTEMPT]})
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"line {3 * MOST_UNHEARD - 1} ")
    assert begun(tmp_path) == ["judge"]


@given(some.integers(0, 2 * MOST_UNHEARD), some.integers(0, 2 * MOST_UNHEARD))
@bounds(max_examples=20, deadline=None)
def test_of_too_many_lines_the_oldest_are_left_out_and_counted(before: int, after: int) -> None:
    heard = Heard()
    for number in range(before):
        heard.put({"log": number})
    if before:
        heard.take()
    for number in range(before, before + after):
        heard.put({"log": number})
    heard.put({"outcome": "done"})
    taken = []
    while heard.news.poll():
        taken.append(heard.take())
    assert taken[-1] == {"outcome": "done"}
    lines = [one["log"] for one in taken[:-1] if isinstance(one["log"], int)]
    assert lines == list(range(before + after - len(lines), before + after))
    assert len(lines) < MOST_UNHEARD + 1
    if len(lines) < before + after - 2:
        assert "left out" in taken[0]["log"]


def job_with(pid: int, *, is_alive: bool) -> Job:
    process = SimpleNamespace(pid=pid, is_alive=lambda: is_alive, join=lambda: None, exitcode=None)
    return Job(process, Pipe()[0])  # type: ignore[arg-type]


def test_whoever_has_the_number_of_work_that_is_over_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as before:
        ended = job_with(before.pid, is_alive=True)
        born = birth(before.pid)
        before.kill()
    stranger = subprocess.Popen(["sleep", "60"])
    while birth(stranger.pid) == born:  # in one tick of the clock
        stranger.kill()
        stranger.wait()
        stranger = subprocess.Popen(["sleep", "60"])
    try:
        job_with(stranger.pid, is_alive=False).end()
        ended.process.pid = stranger.pid  # type: ignore[misc]
        ended.end()
        assert live_process(stranger.pid, 0.0, *birth(stranger.pid)) is not None
    finally:
        job_with(stranger.pid, is_alive=True).end()
        assert stranger.wait(120) is not None, "work that goes on is ended"


def test_a_conductor_that_is_killed_has_the_task_tried_again(here: dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX) as listens:
        listens.bind(here["socket"])
        listens.listen()
        # With the request unread, which resets the connection.
        thread = threading.Thread(target=lambda: listens.accept()[0].close())
        thread.start()
        with pytest.raises(NotDone, match="the conductor went away"):
            conduct(context_of("judge"), {})
        thread.join()


def test_only_its_user_may_connect_and_there_is_one_conductor(conductor: Any, settings: Settings) -> None:
    assert stat.S_IMODE(os.stat(settings.conductor_socket).st_mode) == 0o600
    with pytest.raises(ConfigError, match="a conductor serves there already"), listening(settings, work):
        pass
    assert settings.conductor_socket.exists()


def test_without_a_conductor_a_task_is_tried_again_and_on_another_host_it_fails(here: dict[str, Any]) -> None:
    with pytest.raises(NotDone, match="no conductor answers"):
        conduct(context_of("judge"), {})
    here["home"] = "/nowhere"
    with pytest.raises(AirflowFailException, match="is not the host of Faultline's conductor.*there.*queue faultline"):
        conduct(context_of("judge"), {})


def test_no_work_asks_for_more_than_it_needs() -> None:
    with pytest.raises(AirflowFailException, match="asks for get_template_context"):
        thin_dags._answer(context_of("judge"), "theirs_", "get_template_context", {})


def answered(request: dict[str, Any], ti: Ti) -> dict[str, Any]:
    """The outcome of real work, whose questions the given task instance answers."""
    ours, theirs = Pipe()

    def answer() -> None:
        while (word := ours.recv()) is not None:
            ours.send({"answer": thin_dags._answer({"ti": ti}, "theirs_", word["ask"], word["with"])})

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        return real.outcome(request, theirs)
    finally:
        theirs.send(None)
        thread.join()


def test_real_work_gives_the_reason_for_which_prepare_refused(here: dict[str, Any]) -> None:
    context = context_of("require_accepted")
    context["ti"].answers = {"refused": "rate: too high"}
    said = answered(thin_dags._about(context, here), context["ti"])
    assert said == {"outcome": "fail", "why": "rate: too high"}


def test_real_work_says_of_a_cell_whether_to_measure_it_or_to_wait(
    here: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path / "results"))
    config = parse_configuration({"workload": "word_count"}).model_dump(mode="json")
    conf = {**config, "repetition": 1, "series": "s", "sweep_id": "x"}
    cell = {"conf": conf, "trigger_run_id": "t", "max_measurements": 3, "cell": "c", "retries": 9}
    context = context_of("run_experiment", only_missing=True)
    request = {**thin_dags._about(context, here), "cell": cell}
    monkeypatch.setattr(Ti, "get_dr_count", lambda self, **given: self.asked.append(given) or 0)
    assert answered(request, context["ti"]) == {"outcome": "trigger"}
    assert context["ti"].asked == [{"dag_id": "theirs_experiment", "run_ids": ["t"]}]
    monkeypatch.setattr(Ti, "get_dr_count", lambda self, **given: 1)
    assert answered(request, context["ti"]) == {"outcome": "defer"}
    ended = answered({**request, "ended": ["t"]}, context["ti"])
    assert ended["outcome"] == "error" and "ended without a record" in ended["why"]


def test_real_work_knows_that_it_is_a_guests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GUEST_RUN, "")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr(logging, "basicConfig", lambda **given: None)
    monkeypatch.setattr(real, "outcome", lambda request, pipe: {"outcome": is_guest_run()})
    assert not is_guest_run()
    ours, theirs = Pipe()
    real.run({}, theirs)
    assert ours.recv() == {"outcome": True}


def test_a_guests_target_is_as_the_tables_of_the_conductors_installation_say(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, asked = Target("lab"), list[Any]()
    keep(settings, lab)
    told: dict[str, Said | None] = {name: Said(name) for name in lab.connections}
    monkeypatch.setattr(connections, "ask", lambda settings, ids: asked.append(ids) or connections.Answer(told))
    written = list[Any]()
    monkeypatch.setattr(connections, "write_target", lambda settings, one, said: written.append((one, dict(said))))
    monkeypatch.setattr("faultline.orchestration.targets.connections.require_well", lambda *given: None)
    monkeypatch.setenv(GUEST_RUN, "1")
    prepare_target(settings, "lab")
    assert asked == [lab.connections] and written == [(lab, told)]
    told["faultline_kafka"] = None
    with pytest.raises(ConfigError, match="Connection faultline_kafka: missing, and the target lab needs it"):
        prepare_target(settings, "lab")
