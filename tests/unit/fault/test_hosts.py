"""Several hosts behind one injector, and the list of processes that a remote host gives."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from fault.errors import VictimRefused
from fault.hosts import Hosts, place
from fault.identity import EXECUTOR, KAFKA, ProcessIdentity, Tokens
from fault.injector import Delivery, Presence
from fault.plan import ALLOWED
from fault.remote_shell import act_program, parse_survey, survey_program
from fault.victims import read_process

RUN = "20261121T061500Z-3fa9c1"
TOKENS = Tokens(RUN, "0123456789abcdef")
VICTIM = ProcessIdentity(4000, 1.0, EXECUTOR, RUN)


@dataclass
class Recorded:
    """An injector that finds one process for each word and remembers what it was asked."""

    asked: list[object] = field(default_factory=list)

    def find(self, victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
        self.asked.append(victim)
        return (VICTIM,)

    def probe(self, victim: ProcessIdentity) -> Presence:
        self.asked.append(("probe", victim))
        return Presence.ALIVE

    def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        self.asked.append((signum, victim))
        return Delivery.SENT

    def stand_by(self, victim: ProcessIdentity, seconds: float) -> None:
        self.asked.append((seconds, victim))

    def stand_down(self, victim: ProcessIdentity) -> None:
        self.asked.append(("down", victim))

    def busy(self, candidates: list[ProcessIdentity]) -> set[ProcessIdentity]:
        self.asked.append("busy")
        return set(candidates[:1])

    def close(self) -> None:
        self.asked.append("close")


def test_where_each_word_is_looked_for() -> None:
    assert place([]) == dict.fromkeys(ALLOWED, ("",))
    spark = ("worker-1", "worker-2")
    assert place(spark) == {**dict.fromkeys(ALLOWED, spark), "driver": ("",), "kafka": ("",)}
    assert place(["kafka", *spark]) == {**dict.fromkeys(ALLOWED, spark), "driver": ("",), "kafka": ("kafka",)}
    assert place(["kafka"]) == {**dict.fromkeys(ALLOWED, ("",)), "kafka": ("kafka",)}


def test_finding_goes_where_the_victims_belong_and_signals_follow() -> None:
    local, remotes = Recorded(), {"worker-1": Recorded(), "worker-2": Recorded()}
    hosts = Hosts(local, remotes)  # type: ignore[arg-type]
    found = hosts.find("executor", TOKENS)
    assert [one.host for one in found] == ["worker-1", "worker-2"]
    assert [one.host for one in hosts.find("driver", TOKENS)] == [""]
    assert local.asked == ["driver"]
    assert hosts.signal(found[1], signal.SIGKILL) is Delivery.SENT
    assert hosts.probe(found[0]) is Presence.ALIVE
    assert remotes["worker-2"].asked == ["executor", (signal.SIGKILL, found[1])]
    assert remotes["worker-1"].asked == ["executor", ("probe", found[0])]
    hosts.stand_by(found[1], 3.0)
    hosts.stand_down(found[1])
    assert remotes["worker-2"].asked[2:] == [(3.0, found[1]), ("down", found[1])]
    hosts.close()
    assert all(remote.asked[-1] == "close" for remote in remotes.values())


def test_who_is_busy_is_asked_on_each_remote_host() -> None:
    remotes = {"worker-1": Recorded(), "worker-2": Recorded(), "idle": Recorded()}
    hosts = Hosts(Recorded(), remotes)  # type: ignore[arg-type]
    one, two, other = (replace(VICTIM, pid=pid, host=f"worker-{host}") for pid, host in ((5, 1), (6, 1), (7, 2)))
    assert hosts.busy([two, one, other, VICTIM]) == {two, other}
    assert remotes["idle"].asked == []


def test_a_placement_may_be_given_and_an_unknown_host_is_refused() -> None:
    remotes = {"worker-1": Recorded()}
    hosts = Hosts(Recorded(), remotes, {"kafka": ("worker-1",)})  # type: ignore[arg-type]
    assert [one.host for one in hosts.find("kafka", TOKENS)] == ["worker-1"]
    with pytest.raises(VictimRefused, match="^host: elsewhere is not known; known: worker-1"):
        hosts.signal(replace(VICTIM, host="elsewhere"), signal.SIGKILL)
    with pytest.raises(VictimRefused, match="^host: "):
        Hosts(Recorded(), {"": Recorded()})  # type: ignore[dict-item]


def words(text: str) -> list[list[str]]:
    return [line.split(" ")[1:] for line in text.splitlines() if line.startswith("faultline ")]


def test_the_survey_of_a_shell_sees_what_is_there() -> None:
    arguments = ["-Dfaultline.instance=0123456789abcdef", KAFKA.main, "two\nlines", "é", ""]
    with subprocess.Popen(["sh", "-c", "read x", *arguments], stdin=subprocess.PIPE) as process:
        try:
            done = subprocess.run(["sh", "-s"], input=survey_program(), capture_output=True, text=True, check=True)
        finally:
            process.kill()
    snapshot = parse_survey(words(done.stdout), "node1")
    live = snapshot.processes[process.pid]
    assert live.command[3:7] == tuple(arguments[:4])
    assert snapshot.parents[process.pid] in snapshot.parents
    assert snapshot.host == "node1"
    assert process.pid not in snapshot.protected
    assert snapshot.parents[process.pid] in snapshot.protected  # this process started that shell
    assert done.stderr == ""


def act_inside(wrapper: str, folder: Path, act: str) -> tuple[list[list[str]], int]:
    """One act against a marked shell, run within that shell; gives what it said, and how the shell ended."""
    arguments = [f"faultline-run={RUN}", EXECUTOR.main]
    with subprocess.Popen(
        ["sh", "-c", wrapper, "sh", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        live = read_process(process.pid)
        while live is not None and EXECUTOR.main not in live.command:
            live = read_process(process.pid)  # it has not been executed yet
        assert live is not None
        victim = ProcessIdentity(live.pid, live.create_time, EXECUTOR, RUN, live.command, live.start_ticks)
        (folder / "program").write_text(act_program(victim, act))
        said, _ = process.communicate(f"{folder / 'program'}\n", timeout=20)
    return words(said), process.returncode


def test_a_shell_does_not_signal_its_own_ancestors(tmp_path: Path) -> None:
    inside = 'read program; sh -s <"$program"; exit 3'
    said, status = act_inside(inside, tmp_path, "KILL")
    assert (said[0][:3], status) == (["mismatch", "pid", "it"], 3)
    assert act_inside(inside, tmp_path, "probe") == ([["alive"]], 3)


def test_a_survey_that_was_cut_off_is_no_list() -> None:
    with pytest.raises(ValueError, match="not complete"):
        parse_survey([["clock", "100", "1", "7"], ["stat", "7", "S", "1", "5"]], "node1")
    with pytest.raises(ValueError, match="not complete"):
        parse_survey([["end"]], "node1")


def test_zombies_and_processes_between_the_two_lists_are_left_out() -> None:
    text = "6b61666b612e4b61666b6100"
    said = [["clock", "100", "10", "7"], ["stat", "8", "Z", "1", "5"], ["stat", "9", "T", "1", "150"]]
    snapshot = parse_survey([*said, *(["command", pid, text] for pid in ("8", "9", "10")), ["end"]], "node1")
    assert list(snapshot.processes) == [9]
    live = snapshot.processes[9]
    assert (live.command, live.create_time, live.start_ticks, live.stopped) == (("kafka.Kafka",), 11.5, 150, True)
