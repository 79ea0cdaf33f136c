"""One injector over several hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fault.errors import VictimRefused
from fault.identity import VICTIMS, ProcessIdentity, Tokens
from fault.injector import Delivery, Injector, Presence
from fault.this_host import ThisHost
from fault.victims import sort_candidates

if TYPE_CHECKING:  # the SSH library takes a quarter of a second, which a run on this machine alone does without
    from fault.remote import ClockOffset, RemoteInjector

# The name under which a remote broker's host is known.
KAFKA_HOST = "kafka"


def place(remotes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The hosts on which each victim word is looked for; "" is this one.

    The driver runs here. Executors and what belongs to them run on the remote hosts, if there are
    any beside the broker's; the broker on the remote host named `kafka`, if there is one.
    """
    spark = tuple(name for name in remotes if name != KAFKA_HOST) or ("",)
    return {
        **dict.fromkeys(VICTIMS, spark),
        "driver": ("",),
        "kafka": (KAFKA_HOST,) if KAFKA_HOST in remotes else ("",),
    }


class Hosts:
    """Finds victims on the hosts where they belong, and signals each on its own host.

    `remotes`: by the name that identities and journals show, not empty. `placement`: the hosts for
    each victim word, by default those of `place`.
    """

    def __init__(
        self,
        local: Injector,
        remotes: Mapping[str, RemoteInjector] | None = None,
        placement: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._local = local
        self._remotes = dict(remotes or {})
        if "" in self._remotes:
            raise VictimRefused("host: a remote host needs a name; the empty one is this host")
        self._placement = {**place(tuple(self._remotes)), **(placement or {})}

    def find(self, victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
        """The candidates of all hosts of the placement, sorted. Raises VictimRefused or RemoteError."""
        found: list[ProcessIdentity] = []
        for name in self._placement[victim]:
            found += [replace(one, host=name) for one in self._injector(name).find(victim, tokens)]
        return sort_candidates(found)

    def probe(self, victim: ProcessIdentity) -> Presence:
        """What is under the victim's pid on its host. Raises RemoteError when the host cannot tell."""
        return self._injector(victim.host).probe(victim)

    def arm(self, victim: ProcessIdentity) -> None:
        """Prepares the next signal on the victim's host; raises what that host's injector raises."""
        self._injector(victim.host).arm(victim)

    def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        """Signals the victim on its host, once; raises what that host's injector raises."""
        return self._injector(victim.host).signal(victim, signum)

    def stand_by(self, victim: ProcessIdentity, seconds: float) -> None:
        """Posts a dead man on the victim's host; raises what that host's injector raises."""
        self._injector(victim.host).stand_by(victim, seconds)

    def stand_down(self, victim: ProcessIdentity) -> None:
        """Sends him home."""
        self._injector(victim.host).stand_down(victim)

    def busy(self, candidates: Sequence[ProcessIdentity]) -> set[ProcessIdentity]:
        """Those candidates on remote hosts that work just now, for `fault.busy.await_busy`. Raises RemoteError."""
        found: set[ProcessIdentity] = set()
        for name, remote in self._remotes.items():
            mine = [candidate for candidate in candidates if candidate.host == name]
            found |= remote.busy(mine) if mine else set()
        return found

    def clock_offsets(self) -> dict[str, ClockOffset]:
        """The clock of every remote host against ours, by name. Raises RemoteError."""
        return {name: remote.clock_offset() for name, remote in self._remotes.items()}

    def close(self) -> None:
        """Ends all connections."""
        for remote in self._remotes.values():
            remote.close()

    def acting_on(self, name: str) -> RemoteInjector | ThisHost:
        """Whoever acts on a host, "" being this one. Raises VictimRefused for an unknown."""
        return self._remote(name) if name else ThisHost()

    def _remote(self, name: str) -> RemoteInjector:
        if name not in self._remotes:
            raise VictimRefused(f"host: {name} is not known; known: {', '.join(sorted(self._remotes)) or 'none'}")
        return self._remotes[name]

    def _injector(self, name: str) -> Injector:
        if not name:
            return self._local
        return self._remote(name)
