"""Whether a target's hosts can be reached over SSH, and how far their clocks are off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fault.errors import AuthenticationRefused, FaultError, HostKeyRefused, HostUnreachable, RemoteError
from faultline.installation.targets.clock import Clock
from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.system.ssh_hosts import remote_hosts
from faultline.system.text import one_line


def greeted(host: Mapping[str, Any], connection: str) -> str:
    """Has the agent come there, and asks it for the time. `host`: as the endpoints of a target have it.

    Raises ConfigError for a login or a host key that is refused, InfrastructureError for a host that is away, or where
    the agent does not start.
    """
    from fault.remote import RemoteInjector  # the SSH library takes its time

    (there,) = remote_hosts({connection: host}).values()
    try:
        with RemoteInjector(there) as asked:
            found = asked.clock_offset()
    except FaultError as error:
        raise _refused(error, host, connection) from None
    clock = Clock(found.offset_s * 1000, found.round_trip_s * 1000 / 2)
    return f"{there.user}@{there.host}:{there.port} lets the agent in, {clock}"


def _refused(error: FaultError, host: Mapping[str, Any], connection: str) -> FaultlineError:
    said = one_line(error.stderr if isinstance(error, RemoteError) else error)
    where = f"{host['host']}:{host['port']}"
    kind: type[FaultlineError] = InfrastructureError
    match error:
        case HostKeyRefused():
            kind, why = ConfigError, f"extra: known_hosts: the key that {where} shows is refused ({said})"
            remedy = "name a file that holds its own"
        case AuthenticationRefused():
            kind, why = ConfigError, f"{where} refuses {host['user']} with this key ({said})"
            remedy = "let it in there (authorized_keys), or mend login and key"
        case HostUnreachable():
            why, remedy = f"{where} cannot be reached over SSH ({said})", "start its SSH server, or mend the address"
        case _:
            why, remedy = f"the agent does not start on {where} ({said})", "give it Python 3.11 (python in the extra)"
    return kind(f"Connection {connection}: {why}; {remedy}")
