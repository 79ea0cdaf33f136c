"""Several hosts behind one injector, and the list of processes that a remote host gives."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace

import pytest

from fault.errors import VictimRefused
from fault.hosts import Hosts, place
from fault.identity import EXECUTOR, ProcessIdentity, Tokens
from fault.injector import Delivery, Presence
from fault.plan import ALLOWED

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
