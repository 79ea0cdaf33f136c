"""Runs tests in forks of a process that has imported all packages already: one job a line in, one result a line out.

It must be process 1 of a namespace of its own: a mutant of code that sends signals may send them to anybody, and finds
only what its own tests started. What outlives a job is ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import Phase, settings

MEMORY = 8 << 30
# Exit codes of a job. All tests passed; one failed, or could not even be collected; one took too long.
SURVIVED, NOTICED, TIMEOUT = 0, 1, 3
# A mutant that does not end is told by its processor time, which a busy machine does not stretch: seconds, and times as
# much as the test took. One that sleeps is left to the limits of time.
GRACE_S, FACTOR = 2.0, 5.0
PATIENCE = 20


def used_s() -> float:
    """Processor time of this process and of those it waited for."""
    return sum(os.times()[:4])


class Reach:
    """Which lines of the watched files each test reaches, and how long it takes."""

    def __init__(self, watched: list[str]) -> None:
        self._watched = {os.path.abspath(path): path for path in watched}
        self._now: set[tuple[str, int]] = set()
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._now, began = set(), used_s()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            return (yield)  # type: ignore[return-value]
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self.tests[item.nodeid] = {"s": used_s() - began, "lines": sorted(self._now)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self.failed.append(report.nodeid)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        path = self._watched.get(frame.f_code.co_filename)
        if path is None:
            return None
        reached = self._now

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            reached.add((path, frame.f_lineno))
            return line

        return line


class Only:
    """Runs the named tests, in that order, each within its time."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self.by: str | None = None
        self.late = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = {item.nodeid: item for item in items}
        items[:] = [known[name] for name in self._seconds if name in known]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        def end(number: int, frame: object) -> None:
            self.late = True
            pytest.fail("takes too long")

        signal.signal(signal.SIGPROF, end)
        signal.setitimer(signal.ITIMER_PROF, GRACE_S + FACTOR * self._seconds[item.nodeid])
        try:
            return (yield)  # type: ignore[return-value]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.by = report.nodeid
            self.late = self.late or "Timeout (>" in report.longreprtext


def run(job: dict[str, Any], answer: Path) -> int:
    """In the fork: the tests, and what became of them in the file `answer`."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open("job.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(null, 0), os.dup2(log, 1), os.dup2(log, 2)
    sys.dont_write_bytecode = not job.get("watched")
    # Examples are the same in each run, and a failing one is not made smaller: it is enough that there is one. Tests
    # that do not say how many they need are asked with fewer than usual: what these notice, the usual ones do, too.
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutating", max_examples=30, derandomize=True, database=None, phases=phases)
    settings.load_profile("mutating")
    # Hypothesis was imported before pytest could rewrite it, which changes nothing here.
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options += [f"--basetemp={os.environ['TMPDIR']}/pytest"]
    if job.get("watched"):
        reach = Reach(job["watched"])
        code = pytest.main(options + job["targets"], plugins=[reach])
        own = os.getcwd()
        packages = [name for name, module in sys.modules.items() if _is_installed(module, own)]
        answer.write_text(json.dumps({"tests": reach.tests, "failed": reach.failed, "packages": packages}))
        return int(code)
    only = Only(job["seconds"])
    code = pytest.main([*options, "-x", *sorted({name.split("::")[0] for name in job["seconds"]})], plugins=[only])
    answer.write_text(json.dumps({"by": only.by}))
    return TIMEOUT if only.late else SURVIVED if code == 0 else NOTICED


def _is_installed(module: Any, own: str) -> bool:
    path = str(getattr(module, "__file__", None) or own)
    return not path.startswith(own) and os.path.dirname(path) != os.path.dirname(__file__)


def perform(job: dict[str, Any]) -> dict[str, Any]:
    """One job: with the mutant in place of its file, as long as it lasts."""
    answer = Path("answer.json")
    answer.unlink(missing_ok=True)
    path, before = Path(job.get("path", "")), None
    if job.get("path"):
        before = path.read_text()
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()
        path.write_text(job["code"])
    try:
        child = os.fork()
        if child == 0:
            code = NOTICED
            try:
                code = run(job, answer)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status = _wait(child, PATIENCE * (10 + sum(job.get("seconds", {}).values() or [600])))
    finally:
        if before is not None:
            path.write_text(before)
        _end_the_rest()
    known = json.loads(answer.read_text()) if answer.exists() else {}
    return {"code": TIMEOUT if status is None else status, **known}


def _wait(child: int, limit_s: float) -> int | None:
    """The exit code, NOTICED for one that a signal ended; None when it took too long."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else NOTICED
        time.sleep(0.02)
    return None


def _end_the_rest() -> None:
    """Everything else in the namespace; this process, its first, no signal from within reaches."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def main() -> None:
    if os.getpid() != 1:
        raise SystemExit("only as process 1 of a namespace of its own")
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(os.path.abspath(__file__))]
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        job = json.loads(line)
        for name in job.pop("packages", []):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        gc.freeze()
        print(json.dumps(perform(job)), file=results, flush=True)


if __name__ == "__main__":
    main()
