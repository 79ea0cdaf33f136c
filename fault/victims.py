"""Victims: find the processes of a run, choose among them by seed, and check them before a signal."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fault.errors import TooFewVictims, VictimRefused
from fault.fault_spec import FaultSpec, Occurrence
from fault.identity import (
    ANY,
    EXECUTOR,
    ROLES,
    WORKER,
    LiveProcess,
    ProcessIdentity,
    Role,
    Tokens,
    has_token,
    is_forked_copy,
    marked_ancestor,
    node_of,
)
from fault.procfs import all_pids, ancestry_of, command_of, read_process, stat_of

# Roles of the processes that each value of `victim` covers.
ROLES_BY_VICTIM: Mapping[str, tuple[Role, ...]] = {
    **{name: (role,) for name, role in ROLES.items()},
    ANY: (EXECUTOR, WORKER),
}


@dataclass(frozen=True)
class ProcessSnapshot:
    """Processes of one host at about one instant.

    `processes`: by pid, this user's processes whose command line names a main of the requested roles. `parents`: parent
    pid of every process. `protected`: pids that are never victims.
    """

    processes: Mapping[int, LiveProcess]
    parents: Mapping[int, int]
    protected: frozenset[int]

    def ancestors(self, pid: int) -> Iterator[LiveProcess]:
        """Yield the ancestors, parent first; one without a requested role has an empty command line."""
        seen = {pid}
        while (pid := self.parents.get(pid, 0)) > 1 and pid not in seen:
            seen.add(pid)
            yield self.processes.get(pid) or LiveProcess(pid, self.parents.get(pid, 0), 0.0, None, ())


def read_ancestors(live: LiveProcess, until: Role) -> Iterator[LiveProcess]:
    """Yield the live ancestors of a process, parent first, up to the nearest with the role `until`."""
    seen = {live.pid}
    process: LiveProcess | None = live
    while process is not None and process.parent_pid > 1 and process.parent_pid not in seen:
        seen.add(process.parent_pid)
        process = read_process(process.parent_pid)
        if process is not None:
            yield process
            if until.matches(process.command):
                return


def own_ancestry() -> frozenset[int]:
    """Return the pids of this process and its ancestors, which are never victims."""
    return ancestry_of(os.getpid())


def read_snapshot(roles: Iterable[Role] = tuple(ROLES.values())) -> ProcessSnapshot:
    """Return this user's processes of those roles on this host."""
    processes: dict[int, LiveProcess] = {}
    parents: dict[int, int] = {}
    mains = {main for role in roles for main in role.mains}
    for pid in all_pids():
        try:
            parents[pid] = int(stat_of(pid)[1])
            command = command_of(pid)
        except OSError:
            continue
        # Most processes have no such role; reading all their data would take most of the time.
        live = read_process(pid) if not mains.isdisjoint(command) else None
        if live is not None and not live.is_foreign:
            processes[pid] = live
            parents[pid] = live.parent_pid
    return ProcessSnapshot(processes, parents, own_ancestry())


def find_victims(victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
    """Return the live processes of this host that match a victim and the tokens, sorted."""
    return select_victims(victim, tokens, read_snapshot((*ROLES_BY_VICTIM[victim], EXECUTOR)))


def select_victims(victim: str, tokens: Tokens, snapshot: ProcessSnapshot) -> tuple[ProcessIdentity, ...]:
    """Return the candidates of a snapshot for a victim, in the order of `sort_key`.

    An executor, driver or broker must carry its token. A worker must host an executor of the run and none of another
    run. A Python worker must descend from an executor of the run. Protected processes are excluded, and so is the child
    of a candidate: between fork and exec it shows its parent's command line. Raises VictimRefused if a needed token is
    missing.
    """
    found: list[ProcessIdentity] = []
    for role in ROLES_BY_VICTIM[victim]:
        if role.parent_role is not None:
            found += _find_forked(role, tokens, snapshot)
            continue
        marked = _find_marked(role, tokens, snapshot)
        if role is WORKER:
            own = {executor.node for executor in _find_marked(EXECUTOR, tokens, snapshot)}
            others = _other_nodes(tokens, snapshot)
            marked = [worker for worker in marked if worker.node in own - others - {None}]
        found += marked
    return sort_candidates(found)


def executor_ids(executors: Iterable[ProcessIdentity], node: str | None) -> list[int]:
    """Return the ids of the executors on the Spark worker `node` (HOST:PORT), ascending."""
    return sorted({one.number for one in executors if one.number is not None and node is not None and one.node == node})


def sort_key(candidate: ProcessIdentity) -> tuple[str, bool, int, float, str, int]:
    """Return role, number (numbered ones first), creation time, host and pid."""
    number = candidate.number
    return candidate.role.name, number is None, number or 0, candidate.create_time, candidate.host, candidate.pid


def sort_candidates(candidates: Iterable[ProcessIdentity]) -> tuple[ProcessIdentity, ...]:
    """Return the candidates in an order independent of how they were found."""
    return tuple(sorted(candidates, key=sort_key))


def choose_victims(
    candidates: Sequence[ProcessIdentity],
    count: int,
    *,
    seed: int,
    repetition: int,
    fault: int = 0,
    by_node: bool = False,
) -> tuple[ProcessIdentity, ...]:
    """Return `count` distinct victims, determined by seed, repetition, fault number and sorted candidates.

    With `by_node` (victim `any`) each is a random process on a random node; a node gives a second one only after every
    node has given one. Raises TooFewVictims if there are too few candidates.
    """
    ordered = sort_candidates(candidates)
    if len(ordered) < count:
        raise TooFewVictims(f"count: got {count}; expected at most {len(ordered)}, the live candidates")
    # A text seed goes through SHA-512, which is the same on all machines and Python versions.
    rng = random.Random(f"victims:{seed}:{repetition}:{fault}")
    if not by_node:
        return tuple(rng.sample(ordered, count))
    left_by_node: dict[tuple[str, str], list[ProcessIdentity]] = {}
    for candidate in ordered:
        left_by_node.setdefault((candidate.host, candidate.node or ""), []).append(candidate)
    chosen: list[ProcessIdentity] = []
    while len(chosen) < count:
        nodes = sorted(left_by_node)
        for node in rng.sample(nodes, min(len(nodes), count - len(chosen))):
            on_node = left_by_node[node]
            chosen.append(on_node.pop(rng.randrange(len(on_node))))
            if not on_node:
                del left_by_node[node]
    return tuple(chosen)


def _find_marked(role: Role, tokens: Tokens, snapshot: ProcessSnapshot) -> list[ProcessIdentity]:
    token = tokens.of(role)
    processes = snapshot.processes.values()
    own = {live.pid: live for live in processes if role.matches(live.command) and has_token(live.command, token, role)}
    return [
        _identity(live, role, token, node_of(role, live.command))
        for live in own.values()
        if live.parent_pid not in own and live.pid > 1 and live.pid not in snapshot.protected
    ]


def _find_forked(role: Role, tokens: Tokens, snapshot: ProcessSnapshot) -> list[ProcessIdentity]:
    token = tokens.of(role)
    found = []
    for live in snapshot.processes.values():
        if live.pid <= 1 or live.pid in snapshot.protected:
            continue
        ancestors = list(snapshot.ancestors(live.pid))
        if not is_forked_copy(role, live, ancestors):
            continue
        parent = marked_ancestor(role, ancestors)
        if parent is not None and has_token(parent.command, token, role):
            found.append(_identity(live, role, token, node_of(EXECUTOR, parent.command)))
    return found


def _identity(live: LiveProcess, role: Role, token: str, node: str | None) -> ProcessIdentity:
    return ProcessIdentity(live.pid, live.create_time, role, token, live.command, live.start_ticks, node=node)


def _other_nodes(tokens: Tokens, snapshot: ProcessSnapshot) -> set[str | None]:
    """Return the nodes that host an executor of another run."""
    return {
        node_of(EXECUTOR, live.command)
        for live in snapshot.processes.values()
        if EXECUTOR.matches(live.command) and not has_token(live.command, tokens.run)
    }


@dataclass(frozen=True)
class VictimGuard:
    """Checks that restrict injections to processes with the run's tokens, and to the fault's number of victims.

    `protected`: local pids that are always refused; by default this process and its ancestors.
    """

    tokens: Tokens
    protected: frozenset[int] = field(default_factory=own_ancestry)

    def check(self, fault: FaultSpec, victims: Sequence[ProcessIdentity]) -> None:
        """Raise VictimRefused, naming the check, unless all `victims` are allowed for `fault`."""
        allowed = fault.max_processes
        if len(victims) > allowed:
            raise VictimRefused(f"count: got {len(victims)} victims; expected at most {allowed}")
        if len({(victim.host, victim.pid) for victim in victims}) != len(victims):
            raise VictimRefused("pid: got the same process twice; expected distinct victims")
        for victim in victims:
            self._check_one(fault, victim)

    def _check_one(self, fault: FaultSpec, victim: ProcessIdentity) -> None:
        role = victim.role
        # Pids of another host are unrelated to this process.
        if victim.pid <= 1 or (not victim.host and victim.pid in self.protected):
            raise VictimRefused(f"pid: got {victim.pid}; expected neither this process, nor an ancestor, nor init")
        if role not in ROLES_BY_VICTIM[fault.victim]:
            raise VictimRefused(f"role: got {role.name} for process {victim.pid}; expected {fault.victim}")
        token = self.tokens.of(role)
        if victim.token != token:
            raise VictimRefused(f"token: got {victim.token} for process {victim.pid}; expected {token}")
        if not role.matches(victim.command):
            raise VictimRefused(f"role: process {victim.pid}: missing {' or '.join(role.mains)} on its command line")
        if role.parent_role is None and not has_token(victim.command, token, role):
            raise VictimRefused(f"token: process {victim.pid}: missing {token} on its command line")

    def describe(self, planned: Occurrence, victims: Sequence[ProcessIdentity]) -> list[str]:
        """Return the dry run: one line per victim with the injection and its time."""
        self.check(planned.fault, victims)
        return [f"would {planned.describe(str(victim))}" for victim in victims]
