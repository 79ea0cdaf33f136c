"""Temporary installation: own folders, own ports, real command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from faultline.system.settings import DEFAULT_PORTS, MACHINE, ROOT, Settings, free_port, load_settings

# Reason codes that a busy machine may cause; such an attempt is invalid, but complete, with exact counts.
BUSY_MACHINE_REASONS = (
    "schedule-lag", "background-load", "not-steady", "overloaded", "interval-not-held", "baseline-too-short",
    "backlog-at-t0", "missed-window", "drain-incomplete", "timeline-incomplete: missing: the broker's end offsets",
)  # fmt: skip


@dataclass(frozen=True)
class Installation:
    """An installation under test; `run` calls its command line."""

    home: Path
    results: Path
    # Environment variables in addition to those that name its two folders.
    given: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        # The database, schedule and timeouts of the calling environment must not apply.
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "FAULTLINE_"))}
        own = {"FAULTLINE_HOME": str(self.home), "FAULTLINE_RESULTS": str(self.results)}
        return {**clean, **own, **self.given}

    @property
    def settings(self) -> Settings:
        ports = json.loads((self.home / "ports.json").read_text())
        return Settings(ROOT, self.home, self.results, ports, self.given.get("FAULTLINE_MACHINE", MACHINE))

    def command(self, name: str) -> list[str]:
        """Return the command line of a command."""
        return [sys.executable, "-P", "-m", "faultline", name]

    def run(self, *arguments: str, timeout_s: float = 1800) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "faultline", *arguments],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


def make_installation(folder: Path) -> Installation:
    """Return a new installation that shares only the verified jars with the installation that runs the tests."""
    home, results = folder / "home", folder / "results"
    home.mkdir(parents=True)
    (home / "jars").symlink_to(load_settings().jars, target_is_directory=True)
    (home / "ports.json").write_text(json.dumps(dict(zip(DEFAULT_PORTS, free_ports(len(DEFAULT_PORTS)), strict=True))))
    return Installation(home, results)


def free_ports(number: int) -> list[int]:
    """Return distinct free loopback ports."""
    found: set[int] = set()
    while len(found) < number:
        found.add(free_port())
    return list(found)


@contextmanager
def within(settings: Settings, use: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that is inside the context manager `use`: a call of `use_services` or `hold_foreground`."""
    program = (
        "import sys, time; from pathlib import Path; from faultline.system.settings import Settings\n"
        "from faultline.installation.service_users import hold_foreground, use_services\n"
        f"settings = Settings(*map(Path, sys.argv[1:]))\nwith {use}: print('in', flush=True); time.sleep(900)\n"
    )
    command = [sys.executable, "-c", program, *map(str, (settings.root, settings.home, settings.results))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "in\n"
        try:
            yield process
        finally:
            process.kill()
