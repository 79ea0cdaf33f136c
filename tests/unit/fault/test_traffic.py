"""Network faults of a host on a fake kernel; the real one: tests/component/test_host_faults.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault import traffic_control
from fault.errors import ActionRefused, KernelUnsupported
from fault.host_faults import HOST_FAULTS, injection_name

NAMES = [injection_name(f"20261121T06150{n}Z-3fa9c1", index) for n in range(2) for index in range(2)]
PEERS = ["10.0.0.1", "10.0.0.3", "192.0.2.7"]
ASKED: dict[str, dict[str, Any]] = {
    "partition": {"peers": PEERS, "way": "both"},
    "loss": {"peers": PEERS, "percent": 2.5},
    "bandwidth": {"peers": PEERS, "mbit_s": 10.0},
    "delay": {"peers": PEERS, "delay_ms": 100.0, "jitter_ms": 5.0},
}


class Kernel:
    """Tables of nft, and disciplines by interface; the handle `0:` is the kernel's own."""

    def __init__(self, **roots: tuple[str, str]) -> None:
        self.tables: dict[str, str] = {}
        self.roots = {"eth0": ("noqueue", "0:"), "eth1": ("mq", "0:"), **roots}
        self.below: dict[str, list[str]] = {"eth0": [], "eth1": []}
        self.netem = True
        self.fails: str | None = None

    def run(self, program: str, *words: str, stdin: str = "") -> str:
        if self.fails and self.fails in " ".join((program, *words)):
            raise ActionRefused(f"{program}: no")
        return {"nft": self._nft, "ip": self._ip, "tc": self._tc, "unshare": self._apart}[program](list(words), stdin)

    def _nft(self, words: list[str], stdin: str) -> str:
        match words:
            case ["list", "tables"]:
                return "".join(f"table inet {name}\n" for name in self.tables)
            case ["-f", "-"]:
                found = re.match(r"table inet (\w+) \{\n((?:chain \w+ \{ .* \}\n)+)\}\n$", stdin)
                assert found and found[1] not in self.tables
                self.tables[found[1]] = found[2]
            case ["delete", "table", "inet", name]:
                del self.tables[name]
            case _:
                raise AssertionError(words)
        return ""

    def _ip(self, words: list[str], stdin: str) -> str:
        assert words[:2] == ["route", "get"]
        device = "eth1" if words[2].startswith("192") else "eth0"
        return f"{words[2]} dev {device} src 10.0.0.9 uid 0 \n    cache \n"

    def _tc(self, words: list[str], stdin: str) -> str:
        match words:
            case ["qdisc", "show"]:
                return "".join(
                    f"qdisc {kind} {handle} dev {on} root refcnt 2 \n" for on, (kind, handle) in self.roots.items()
                )
            case ["qdisc", "add", "dev", device, "root", "handle", handle, kind, *more]:
                if self.roots[device][1] != "0:":
                    raise ActionRefused("Error: Exclusivity flag on, cannot modify.")
                self.roots[device], self.below[device] = (kind, handle), [" ".join(more)]
            case ["qdisc" | "filter", "add", "dev", device, "parent", *more]:
                assert more[0].startswith(self.roots[device][1])
                self.below[device].append(" ".join(more))
            case ["qdisc", "delete", "dev", device, "root", "handle", handle]:
                assert self.roots[device][1] == handle
                self.roots[device], self.below[device] = ("noqueue", "0:"), []
            case _:
                raise AssertionError(words)
        return ""

    def _apart(self, words: list[str], stdin: str) -> str:
        if not self.netem:
            raise ActionRefused("unshare --net sh: Error: Specified qdisc kind is unknown.")
        return ""


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    made = Kernel()
    with on(made):
        monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 5555 10.0.0.9 2222")
        yield made


@contextmanager
def on(kernel: Kernel) -> Iterator[None]:
    """Has acts done to this kernel."""
    traffic_control._netem_problem.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traffic_control, "run_program", kernel.run)
        patch.setattr(traffic_control, "require_program", lambda program, package: None)
        patch.setattr(traffic_control, "_has_net_admin", lambda: True)
        yield
    traffic_control._netem_problem.cache_clear()


STEPS = st.lists(st.tuples(st.sampled_from(sorted(ASKED)), st.sampled_from(NAMES), st.booleans()), max_size=30)


@given(STEPS)
def test_undo_removes_only_rules_of_its_name(steps: list[tuple[str, str, bool]]) -> None:
    """Also if a watchdog is late and another injection is active."""
    kernel, there = Kernel(eth1=("htb", "1:")), set()
    kernel.tables["of_somebody"] = ""
    asked = {kind: {**one, "peers": PEERS[:2]} for kind, one in ASKED.items()}
    with on(kernel):
        for kind, name, undo in steps:
            if undo:
                HOST_FAULTS[kind].undo(name, asked[kind])
                there -= {(one, name) for one in ("partition", "loss") if kind in ("partition", "loss")} | {
                    (kind, name)
                }
            elif any(one in ("bandwidth", "delay") and (one, of) != (kind, name) for one, of in there) and kind in (
                "bandwidth", "delay"
            ):  # fmt: skip
                with pytest.raises(ActionRefused, match="Exclusivity"):
                    HOST_FAULTS[kind].do(name, asked[kind])
            elif not (kind in ("partition", "loss") and {("partition", name), ("loss", name)} & there):
                HOST_FAULTS[kind].do(name, asked[kind])
                there.add((kind, name))
            for one, of in there:
                assert HOST_FAULTS[one].is_active(of, asked[one]), (one, of)
            tables = {f"faultline_{of}" for one, of in there if one in ("partition", "loss")}
            assert set(kernel.tables) == {"of_somebody", *tables}
            assert kernel.roots["eth1"] == ("htb", "1:")
            shaped = [one for one, _ in there if one in ("bandwidth", "delay")]
            assert (kernel.roots["eth0"][1] != "0:") == bool(shaped)


@pytest.mark.parametrize("kind", ["bandwidth", "delay"])
def test_all_interfaces_to_peers_are_shaped_and_restored(kernel: Kernel, kind: str) -> None:
    act, name = HOST_FAULTS[kind], NAMES[0]
    before = dict(kernel.roots)
    act.check(name, ASKED[kind])
    act.do(name, ASKED[kind])
    act.do(name, ASKED[kind])
    assert {handle for _, handle in kernel.roots.values()} == {traffic_control._handle(name)}
    with pytest.raises(ActionRefused, match="^eth0: "):
        act.check(NAMES[1], ASKED[kind])
    act.undo(NAMES[1], ASKED[kind])
    assert act.is_active(name, ASKED[kind])
    act.undo(name, ASKED[kind])
    act.undo(name, ASKED[kind])
    assert {handle for _, handle in kernel.roots.values()} == {"0:"} and kernel.roots.keys() == before.keys()
    kernel.roots["eth1"] = ("fq_codel", "8001:")
    with pytest.raises(ActionRefused, match="^eth1: .*fq_codel 8001:"):
        act.check(name, ASKED[kind])


def test_ssh_passes_on_any_port(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    HOST_FAULTS["partition"].do(NAMES[0], ASKED["partition"])
    (rules,) = kernel.tables.values()
    assert "tcp dport 2222 accept" in rules and "tcp sport 2222 accept" in rules
    HOST_FAULTS["delay"].do(NAMES[0], ASKED["delay"])
    first = next(one for one in kernel.below["eth0"] if "sport" in one)
    assert "sport 2222 0xffff flowid" in first and " prio 1 " in first
    HOST_FAULTS["delay"].undo(NAMES[0], ASKED["delay"])
    HOST_FAULTS["bandwidth"].do(NAMES[0], {"peers": PEERS, "mbit_s": 1000.0})
    assert "rate 1000mbit burst 250000b" in kernel.below["eth0"][0], "a wide way gets a bucket that lets it be wide"
    monkeypatch.delenv("SSH_CONNECTION")
    assert traffic_control.ssh_port() == 22


def test_loss_rules_cover_both_families_and_directions(kernel: Kernel) -> None:
    HOST_FAULTS["partition"].do(NAMES[0], {"peers": ["10.0.0.1", "2001:db8::7", "10.0.0.3"], "way": "in"})
    HOST_FAULTS["loss"].do(NAMES[1], ASKED["loss"])
    rules, lost = kernel.tables.values()
    assert "ip saddr { 10.0.0.1, 10.0.0.3 } drop; ip6 saddr { 2001:db8::7 } drop;" in rules and "chain out" not in rules
    assert len(re.findall(r"(?:saddr|daddr) \{[^}]*\} numgen random mod 1000000 < 25000 drop;", lost)) == 2


def test_missing_netem_is_reported_and_a_failed_delay_is_rolled_back(kernel: Kernel) -> None:
    kernel.fails = "u32 match ip dst"
    with pytest.raises(ActionRefused):
        HOST_FAULTS["delay"].do(NAMES[0], ASKED["delay"])
    assert kernel.roots["eth0"] == ("noqueue", "0:")
    traffic_control._netem_problem.cache_clear()
    kernel.netem = False
    with pytest.raises(ActionRefused, match="^netem: .*Specified qdisc kind is unknown"):
        HOST_FAULTS["delay"].check(NAMES[0], ASKED["delay"])


@pytest.mark.parametrize("kind", sorted(ASKED))
@pytest.mark.parametrize(
    ("peers", "message"),
    [
        *(([one, "10.0.0.1"], f"got {one}") for one in ("127.0.0.1", "::1", "0.0.0.0")),
        (["node1"], "got 'node1'"),
        (["10.0.0.1; reboot"], "got"),
        ([], "missing"),
    ],
)
def test_only_other_hosts_are_peers(kernel: Kernel, kind: str, peers: list[str], message: str) -> None:
    check: Callable[..., None] = HOST_FAULTS[kind].check
    with pytest.raises(ActionRefused, match=f"^peer: {re.escape(message)}"):
        check(NAMES[0], {**ASKED[kind], "peers": peers})
    assert not kernel.tables


@pytest.mark.parametrize("kind", ["bandwidth", "delay"])
def test_missing_capability_is_reported_before_the_start(
    kernel: Kernel, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic_control, "_has_net_admin", lambda: False)
    with pytest.raises(ActionRefused, match="^tc: ") as refused:
        HOST_FAULTS[kind].check("run_0", {"peers": ["10.0.0.1"], "mbit_s": 1, "delay_ms": 1, "jitter_ms": 0})
    assert not isinstance(refused.value, KernelUnsupported), "no weaker fault takes its place"
