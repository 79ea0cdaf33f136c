"""The supervisor daemon that keeps the embedded services running, asked over its Unix socket."""

from __future__ import annotations

import contextlib
import xmlrpc.client
from collections.abc import Iterable
from typing import Any

from faultline.system.settings import Settings


class Supervisor:
    """The supervisor daemon of one installation."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def call(self, method: str, *arguments: object) -> Any:
        """One XML-RPC call over the Unix socket. Raises OSError when the daemon is not there."""
        from supervisor.xmlrpc import SupervisorTransport

        transport = SupervisorTransport(None, None, f"unix://{self.settings.supervisor_socket}")
        try:
            proxy = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport, allow_none=True)
            return getattr(proxy, method)(*arguments)
        finally:
            transport.close()

    def running(self) -> bool:
        try:
            return bool(self.call("supervisor.getState")["statename"] == "RUNNING")
        except (OSError, xmlrpc.client.Error):
            return False

    def states(self) -> dict[str, str]:
        """State by service name, such as RUNNING or BACKOFF; empty when the daemon is not there."""
        return {name: info["statename"] for name, info in self._infos().items()}

    def pids(self) -> dict[str, int]:
        """Pid by service name, of those that run."""
        return {name: int(info["pid"]) for name, info in self._infos().items() if info["pid"]}

    def _infos(self) -> dict[str, dict[str, Any]]:
        try:
            return {info["name"]: info for info in self.call("supervisor.getAllProcessInfo")}
        except (OSError, xmlrpc.client.Error):
            return {}

    def start(self, name: str) -> None:
        """Starts one service; one that runs already is left alone."""
        with contextlib.suppress(xmlrpc.client.Fault):  # ALREADY_STARTED
            self.call("supervisor.startProcess", name, False)

    def start_given_up(self) -> None:
        """Starts the services that it has given up, as after many tries while a disk was full."""
        for name, state in self.states().items():
            if state == "FATAL":
                self.start(name)

    def drop(self, names: Iterable[str]) -> None:
        """Ends services for good: they are no longer part of it, until they are added again."""
        for name in names:
            with contextlib.suppress(xmlrpc.client.Fault):  # NOT_RUNNING
                self.call("supervisor.stopProcessGroup", name)
            with contextlib.suppress(xmlrpc.client.Fault):  # BAD_NAME: it is no part of it any more
                self.call("supervisor.removeProcessGroup", name)

    def load(self) -> None:
        """Makes the daemon know the programs that were added to its configuration."""
        added, _changed, _removed = self.call("supervisor.reloadConfig")[0]
        for group in added:
            with contextlib.suppress(xmlrpc.client.Fault):
                self.call("supervisor.addProcessGroup", group)
