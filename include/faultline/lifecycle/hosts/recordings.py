"""Recordings of other hosts: started and stopped by the recorder, fetched by the harvest."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fault.errors import FaultError
from fault.host_faults import injection_name, neighbour_mark
from fault.identity import KAFKA, WORKER
from fault.injector import clock_offset
from fault.process_sampler import RoleRule
from fault.ssh_connection import RemoteHost, SshChannel
from faultline.experiment.run import Run
from faultline.system.errors import InfrastructureError
from faultline.system.files import make_folder, write_atomic
from faultline.system.journal import Line, read_finished
from faultline.system.process_tags import NEIGHBOURS, ROLES, SERVICES, instance_option
from faultline.system.ssh_hosts import remote_hosts

# Time for start and drain beyond the measured window; an orphaned recording then stops by itself.
MARGIN_S = 1800.0
_PART = 4 * 2**20
# Enough samples for one undisturbed round trip.
_CLOCK_SAMPLES = 20


def role_rules(run: Run, rules: Sequence[RoleRule]) -> list[RoleRule]:
    """Return the rules that map processes to roles on any host.

    `rules`: those of the attempt's engine.
    """
    instance = run.plan.places.instance
    # CPU that a fault consumes is not background CPU.
    marks = [neighbour_mark(injection_name(run.attempt.id, one.index)) for one in run.plan.faults]
    rules = [*rules, *(RoleRule(NEIGHBOURS, mark, mark) for mark in marks)]
    if instance is None:
        return rules
    mark = instance_option(instance)
    return [*rules, RoleRule("kafka", KAFKA.main, mark), RoleRule(SERVICES, WORKER.main, mark)]


def start_recordings(
    run: Run,
    rules: Sequence[RoleRule],
    child_roles: Mapping[str, str],
    *,
    reread_s: float,
    longest_s: float,
    note: Callable[[Line], object],
) -> None:
    """Start a recording on each host, journal its folder, and measure the host's clock.

    Raises InfrastructureError naming the host.
    """
    encoded = [asdict(rule) for rule in role_rules(run, rules)]
    for name, host in _remote_hosts(run).items():
        with _connection(name, host) as channel:
            request = {
                "rules": encoded,
                "child_roles": dict(child_roles),
                "reread_s": reread_s,
                "max_s": longest_s,
                "delay_roles": ROLES,
            }
            folder = channel.ask("record", step="begin", **request)
            note({"kind": "host", "host": name, "folder": folder})
            note(_clock(name, channel))


def stop_recordings(run: Run, note: Callable[[Line], object]) -> None:
    """Stop the recordings and measure the clocks again.

    An unreachable host is journalled: its recording may be fetched later.
    """
    for name, host, folder in _started_recordings(run):
        try:
            with _connection(name, host) as channel:
                channel.ask("record", step="end", folder=folder)
                note(_clock(name, channel))
        except InfrastructureError as error:
            note({"kind": "host_lost", "host": name, "message": str(error)})


def fetch_journals(run: Run) -> None:
    """Copy the journals that are not here yet.

    Raises InfrastructureError naming the host.
    """
    for name, host, folder in _started_recordings(run):
        target = run.attempt.host_journals / f"{name}.jsonl"
        if target.exists():
            continue
        with _connection(name, host) as channel:
            channel.ask("record", step="end", folder=folder)
            text = _read_journal(channel, folder)
        make_folder(run.attempt.host_journals)
        write_atomic(target, text)


def _read_journal(channel: SshChannel, folder: str) -> str:
    """Return a remote journal, read in parts."""
    read = b""
    while True:
        part = base64.b64decode(channel.ask("record", step="part", folder=folder, offset=len(read), size=_PART))
        read += part
        if len(part) < _PART:
            return read.decode()


def remove_journals(run: Run) -> list[str]:
    """Stop and remove the recordings on their hosts; return a line for each failure.

    A recording that remains is removed when its host starts again.
    """
    problems = []
    for name, host, folder in _started_recordings(run):
        try:
            with _connection(name, host) as channel:
                channel.ask("record", step="drop", folder=folder)
        except InfrastructureError as error:
            problems.append(str(error))
    return problems


def _started_recordings(run: Run) -> Iterator[tuple[str, RemoteHost, str]]:
    """Yield name, address and folder of each started recording."""
    hosts = _remote_hosts(run)
    for line in read_finished(run.attempt.recorder_journal) if hosts else ():
        if line.get("kind") == "host" and line["host"] in hosts:
            yield str(line["host"]), hosts[str(line["host"])], str(line["folder"])


def _remote_hosts(run: Run) -> dict[str, RemoteHost]:
    return remote_hosts(run.plan.endpoints.hosts)


@contextlib.contextmanager
def _connection(name: str, host: RemoteHost) -> Iterator[SshChannel]:
    with contextlib.closing(SshChannel(host)) as channel:
        try:
            yield channel
        except FaultError as error:
            raise InfrastructureError(f"host {name}: {error}") from None


def _clock(name: str, channel: SshChannel) -> dict[str, Any]:
    found = clock_offset(channel, _CLOCK_SAMPLES)
    return {"kind": "clock", "host": name, "offset_s": found.offset_s, "round_trip_s": found.round_trip_s}
