"""Several processes that share one schedule: process i sends the records k ≡ i (mod n).

The members are the same program with `--stripe`; they skip the primer, wait at the same gate, and
report on their standard output to the first process, which adds their reports up.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generators.errors import GeneratorError
from generators.gate import StopSwitch

_END_S = 5.0


@dataclass(frozen=True)
class Report:
    """One line of one member; `event` is None when the member's output ended."""

    member: int
    event: dict[str, Any] | None


class Crew:
    """The members of a shared schedule. Use it as a context: leaving it ends every member."""

    def __init__(self, commands: Sequence[Sequence[str]], stop: StopSwitch) -> None:
        """`commands`: one per member."""
        self._stop = stop
        self._reports: queue.Queue[Report] = queue.Queue()
        self._members: list[subprocess.Popen[str]] = []
        self._done: set[int] = set()
        self._commands = commands

    def __enter__(self) -> Crew:
        for number, command in enumerate(self._commands):
            member = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
            self._members.append(member)
            threading.Thread(target=self._listen, args=(number, member), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            if member.poll() is None:
                member.terminate()
        for member in self._members:
            try:
                member.wait(_END_S)
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait()

    def _listen(self, number: int, member: subprocess.Popen[str]) -> None:
        if member.stdout is not None:
            for line in member.stdout:
                self._reports.put(Report(number, json.loads(line)))
        self._reports.put(Report(number, None))

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
        while len(said) < len(self._members):
            report = self.next_report()
            if report is not None and report.event is not None and report.event["event"] == name:
                said[report.member] = report.event
        return [said[number] for number in range(len(self._members))]

    def follow(self, progress: Callable[[int, int], None]) -> list[dict[str, Any]]:
        """Adds up the members' progress until each is done; returns the `done` events by member.

        `progress(sent, due)` is called whenever the first member reports, so about once a second.
        """
        latest: dict[int, tuple[int, int]] = {}
        done: dict[int, dict[str, Any]] = {}
        while len(done) < len(self._members):
            report = self.next_report()
            if report is None or report.event is None:
                continue
            if report.event["event"] == "done":
                done[report.member] = report.event
            elif report.event["event"] == "progress":
                latest[report.member] = report.event["sent"], report.event["due"]
                if report.member == min(set(range(len(self._members))) - self._done):
                    progress(sum(sent for sent, _ in latest.values()), sum(due for _, due in latest.values()))
        return [done[number] for number in range(len(self._members))]


def member_commands(config: Path, gate: Path, histogram: Path, n: int, parent: int, token: str) -> list[list[str]]:
    """The command lines of the members; each carries the run's token, by which it can be found."""
    return [
        [sys.executable, "-m", "generators", "--config", str(config), "--gate", str(gate)]
        + ["--histogram", str(member_histogram(histogram, i)), "--stripe", str(i), "--parent", str(parent)]
        + ([token] if token else [])
        for i in range(n)
    ]


def member_histogram(histogram: Path, number: int) -> Path:
    """Where a member leaves its histogram until it is merged."""
    return histogram.with_name(f"{histogram.name}.{number}")
