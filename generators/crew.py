"""Several processes that share one schedule: process i sends the records k ≡ i (mod n).

The members are processes of this machine (here), or of others (`remote`). They skip the primer, wait at the same gate,
and report to the lead, which adds their reports up.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from generators.gate import Start, StopSwitch
from generators.journal import GeneratorError, Progress, Standing

_END_S = 5.0


@dataclass(frozen=True)
class Report:
    """One line of one member; `event` is None when nothing more comes from it."""

    member: int
    event: dict[str, Any] | None


Tell = Callable[[Report], None]


class Members(Protocol):
    """Those who send, wherever they are."""

    count: int

    def begin(self, tell: Tell) -> None:
        """Starts them all; whatever one of them says is told, from any thread."""

    def open_gate(self, start: Start) -> None:
        """Tells those who cannot see the gate that it is open."""

    def end(self) -> None:
        """Ends whoever has not ended."""


class LocalMembers:
    """Processes of this machine, which report on their standard output and watch the gate themselves."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        """`commands`: one per member."""
        self.count = len(commands)
        self._commands = commands
        self._processes: list[subprocess.Popen[str]] = []

    def begin(self, tell: Tell) -> None:
        for number, command in enumerate(self._commands):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
            self._processes.append(process)
            threading.Thread(target=self._listen, args=(number, process, tell), daemon=True).start()

    def open_gate(self, start: Start) -> None:
        pass

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @staticmethod
    def _listen(number: int, process: subprocess.Popen[str], tell: Tell) -> None:
        try:
            for line in process.stdout or ():
                tell(Report(number, json.loads(line)))
        finally:
            tell(Report(number, None))


class Crew:
    """The members of a shared schedule. Use it as a context: leaving it ends every member."""

    def __init__(self, members: Members, stop: StopSwitch) -> None:
        self._members = members
        self._stop = stop
        self._reports: queue.Queue[Report] = queue.Queue()
        self._done: set[int] = set()

    def __enter__(self) -> Crew:
        try:
            self._members.begin(self._reports.put)
        except BaseException:
            self._members.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._members.end()

    def open_gate(self, start: Start) -> None:
        """Tells the members when the schedule begins."""
        self._members.open_gate(start)

    def next_report(self, timeout_s: float = 0.05) -> Report | None:
        """The next event of a member, or None when there was none in time.

        Raises GeneratorError when a member failed or ended without a `done`, Stopped when asked to stop.
        """
        self._stop.check()
        try:
            report = self._reports.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if report.event is None:
            if report.member in self._done:
                return None
            raise GeneratorError(f"process {report.member} of the generator died; see its standard error")
        if report.event["event"] == "failed":
            raise GeneratorError(f"process {report.member} of the generator: {report.event['message']}")
        if report.event["event"] == "done":
            self._done.add(report.member)
        return report

    def await_all(self, name: str) -> list[dict[str, Any]]:
        """Waits until each member has said `name`; returns those events by member."""
        said: dict[int, dict[str, Any]] = {}
        while len(said) < self._members.count:
            report = self.next_report()
            if report is not None and report.event is not None and report.event["event"] == name:
                said[report.member] = report.event
        return [said[number] for number in range(self._members.count)]

    def follow(self, progress: Progress) -> list[dict[str, Any]]:
        """Adds up the members' progress until each is done; returns the `done` events by member.

        `progress` is called whenever the first member reports, so about once a second.
        """
        latest: dict[int, Standing] = {}
        done: dict[int, dict[str, Any]] = {}
        while len(done) < self._members.count:
            report = self.next_report()
            if report is None or report.event is None:
                continue
            if report.event["event"] == "done":
                done[report.member] = report.event
            elif report.event["event"] == "progress":
                said = Standing(**{name: report.event[name] for name in Standing.__dataclass_fields__})
                before = latest[report.member].latest_ms if report.member in latest else 0.0
                latest[report.member] = replace(said, latest_ms=max(before, said.latest_ms))
                if report.member == min(set(range(self._members.count)) - self._done):
                    progress(Standing.together(latest.values()))
                    # Told: what comes later is counted anew.
                    latest = {member: replace(one, latest_ms=0.0) for member, one in latest.items()}
        return [done[number] for number in range(self._members.count)]


def member_commands(config: Path, gate: Path, n: int, parent: int, token: str) -> list[list[str]]:
    """The command lines of the members; each carries the run's token, by which it can be found."""
    return [
        [sys.executable, "-m", "generators", "--config", str(config), "--gate", str(gate)]
        + ["--stripe", str(i), "--parent", str(parent)]
        + ([token] if token else [])
        for i in range(n)
    ]
