"""Finding the processes that a run may touch, choosing among them by seed, and the rails before any is touched."""

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

# The roles behind each victim word.
ROLES_BY_VICTIM: Mapping[str, tuple[Role, ...]] = {
    **{name: (role,) for name, role in ROLES.items()},
    ANY: (EXECUTOR, WORKER),
}


@dataclass(frozen=True)
class ProcessSnapshot:
    """The processes of one host at about one instant.

    `processes`: by pid, those of the user who looks whose command line names the main of one of the roles that were
    looked for. `parents`: the parent's
    pid of every process, so that ancestors can be followed. `protected`: pids that are never victims.
    """

    processes: Mapping[int, LiveProcess]
    parents: Mapping[int, int]
    protected: frozenset[int]

    def ancestors(self, pid: int) -> Iterator[LiveProcess]:
        """Parent first. One that is not of those roles stands there with an empty command line."""
        seen = {pid}
        while (pid := self.parents.get(pid, 0)) > 1 and pid not in seen:
            seen.add(pid)
            yield self.processes.get(pid) or LiveProcess(pid, self.parents.get(pid, 0), 0.0, None, ())


def read_ancestors(live: LiveProcess, until: Role) -> Iterator[LiveProcess]:
    """The living ancestors of a process, parent first, up to the nearest one of the role `until`."""
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
    """The pids of this process and of its ancestors, which are never victims."""
    return ancestry_of(os.getpid())


def read_snapshot(roles: Iterable[Role] = tuple(ROLES.values())) -> ProcessSnapshot:
    """This user's processes of those roles on this host now."""
    processes: dict[int, LiveProcess] = {}
    parents: dict[int, int] = {}
    mains = {main for role in roles for main in role.mains}
    for pid in all_pids():
        try:
            parents[pid] = int(stat_of(pid)[1])
            command = command_of(pid)
        except OSError:
            continue
        # Most processes are none of ours, and reading all of each would take most of the time.
        live = read_process(pid) if not mains.isdisjoint(command) else None
        if live is not None and not live.is_foreign:
            processes[pid] = live
            parents[pid] = live.parent_pid
    return ProcessSnapshot(processes, parents, own_ancestry())


def find_victims(victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
    """All live processes of this host that the victim word means and the tokens mark, sorted."""
    return select_victims(victim, tokens, read_snapshot((*ROLES_BY_VICTIM[victim], EXECUTOR)))


def select_victims(victim: str, tokens: Tokens, snapshot: ProcessSnapshot) -> tuple[ProcessIdentity, ...]:
    """The candidates of a snapshot for a victim word, in the order of `sort_key`.

    An executor, driver or broker is one that its token marks. A worker must host an executor of the
    run, and none of another run. A Python worker must descend from an executor of the run. Protected
    processes never appear, nor does the child of a candidate: between fork and exec a child still
    shows its parent's command line. Raises VictimRefused when a needed token is missing.
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
    """The ids of those executors that run on the Spark worker `node` (HOST:PORT), ascending."""
    return sorted({one.number for one in executors if one.number is not None and node is not None and one.node == node})


def sort_key(candidate: ProcessIdentity) -> tuple[str, bool, int, float, str, int]:
    """By role, number within it (numbered ones first), creation time, host, pid."""
    number = candidate.number
    return candidate.role.name, number is None, number or 0, candidate.create_time, candidate.host, candidate.pid


def sort_candidates(candidates: Iterable[ProcessIdentity]) -> tuple[ProcessIdentity, ...]:
    """The candidates in an order that does not hang on how they were found."""
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
    """`count` distinct victims, a function of seed, repetition, number of the fault and the sorted candidates.

    With `by_node` (the victim `any`) each one is a random process on a random node; a node gives a
    second one only when all have given one. Raises TooFewVictims when there are too few candidates.
    """
    ordered = sort_candidates(candidates)
    if len(ordered) < count:
        raise TooFewVictims(f"count: {count} victims are asked for, but only {len(ordered)} may be touched and live")
    # A text seed goes through SHA-512, the same on every machine and Python version.
    source = random.Random(f"victims:{seed}:{repetition}:{fault}")
    if not by_node:
        return tuple(source.sample(ordered, count))
    left: dict[tuple[str, str], list[ProcessIdentity]] = {}
    for candidate in ordered:
        left.setdefault((candidate.host, candidate.node or ""), []).append(candidate)
    chosen: list[ProcessIdentity] = []
    while len(chosen) < count:
        nodes = sorted(left)
        for node in source.sample(nodes, min(len(nodes), count - len(chosen))):
            chosen.append(left[node].pop(source.randrange(len(left[node]))))
            if not left[node]:
                del left[node]
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
        over = marked_ancestor(role, ancestors)
        if over is not None and has_token(over.command, token, role):
            found.append(_identity(live, role, token, node_of(EXECUTOR, over.command)))
    return found


def _identity(live: LiveProcess, role: Role, token: str, node: str | None) -> ProcessIdentity:
    return ProcessIdentity(live.pid, live.create_time, role, token, live.command, live.start_ticks, node=node)


def _other_nodes(tokens: Tokens, snapshot: ProcessSnapshot) -> set[str | None]:
    """The nodes that host an executor which is not this run's."""
    return {
        node_of(EXECUTOR, live.command)
        for live in snapshot.processes.values()
        if EXECUTOR.matches(live.command) and not has_token(live.command, tokens.run)
    }


@dataclass(frozen=True)
class VictimGuard:
    """Lets through only processes that `tokens` mark, and never more than the fault asks for.

    `protected`: local pids that are refused whoever names them; by default this process and its ancestors.
    """

    tokens: Tokens
    protected: frozenset[int] = field(default_factory=own_ancestry)

    def check(self, fault: FaultSpec, victims: Sequence[ProcessIdentity]) -> None:
        """Raises VictimRefused, naming the rail, unless all `victims` may suffer `fault`."""
        allowed = fault.max_processes
        if len(victims) > allowed:
            raise VictimRefused(f"count: {len(victims)} victims, but the fault allows {allowed}")
        if len({(victim.host, victim.pid) for victim in victims}) != len(victims):
            raise VictimRefused("pid: the same process is named twice")
        for victim in victims:
            self._check_one(fault, victim)

    def _check_one(self, fault: FaultSpec, victim: ProcessIdentity) -> None:
        role = victim.role
        # The pids of another host say nothing about this process and its ancestors.
        if victim.pid <= 1 or (not victim.host and victim.pid in self.protected):
            raise VictimRefused(f"pid: process {victim.pid} is this process, an ancestor of it, or init")
        if role not in ROLES_BY_VICTIM[fault.victim]:
            raise VictimRefused(f"role: process {victim.pid} is a {role.name}, the fault is for {fault.victim}")
        token = self.tokens.of(role)
        if victim.token != token:
            whose = "this run is" if role.scope == "run" else "these services are"
            raise VictimRefused(f"token: process {victim.pid} belongs to {victim.token}, {whose} {token}")
        if not role.matches(victim.command):
            raise VictimRefused(f"role: process {victim.pid} does not name {' or '.join(role.mains)}: a stranger")
        if role.parent_role is None and not has_token(victim.command, token, role):
            raise VictimRefused(f"token: process {victim.pid} does not carry {token}: a stranger")

    def describe(self, planned: Occurrence, victims: Sequence[ProcessIdentity]) -> list[str]:
        """The dry run: one line for each victim, saying what would happen to it and when."""
        self.check(planned.fault, victims)
        return [f"would {planned.describe(str(victim))}" for victim in victims]
