"""Mutation testing: samples mutants of each room, runs the unit tests that reach them, and says which none noticed."""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants import Mutant, places_of

ROOT = Path(__file__).resolve().parents[2]
# Signals of a mutant stay within: see worker.py.
ALONE = ("unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
OUTCOMES = {0: "survived", 1: "noticed", 3: "timeout"}


@dataclass(frozen=True)
class Room:
    """What is mutated, and the unit tests that are to notice."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    # Files that the tests also run in processes of their own, where nobody sees which lines they reach.
    apart: tuple[str, ...] = ()

    def files(self) -> list[str]:
        """Without entries (`__main__`), which only programs run, and packages' `__init__`, which hold a text."""
        found: list[Path] = []
        for name in self.sources:
            found += [ROOT / name] if name.endswith(".py") else (ROOT / name).rglob("*.py")
        return sorted(str(path.relative_to(ROOT)) for path in found if not path.name.startswith("__"))


# Where comparisons are printed and shown, and what is missing in them is listed.
SHOWN = ("tests/unit/reports/test_pages_compare.py", "tests/unit/reports/test_pages_nights.py")
SHOWN += ("tests/unit/reports/test_document.py", "tests/unit/records/test_manifest.py")
SHOWN += ("tests/unit/client/test_nexmark_sweep.py",)
WINDOW = "tests/unit/base/test_window.py"
PACED = ("tests/unit/generators/test_pacing.py", "tests/unit/generators/test_curve.py")
# Who keeps the time for what faults do, and who undoes it for the dead.
HANDS = ("tests/unit/runner/test_conductor.py", "tests/unit/runner/test_healing.py")
ROOMS = {
    "analysis": Room(
        ("include/faultline/analysis", "include/faultline/base/window.py"), ("tests/unit/analysis", WINDOW)
    ),
    "comparison": Room(("include/faultline/comparison",), ("tests/unit/comparison", *SHOWN)),
    "fault": Room(("fault",), ("tests/unit/fault", *HANDS), ("fault/proxy.py", "fault/relay.py")),
    "pacing": Room(("generators/pacing.py",), PACED),
}


class Worker:
    """A process that runs jobs one after another in a copy of the tree of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tree, scratch = folder / "tree", folder / "tmp"
        scratch.mkdir(parents=True)
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
        environment = os.environ | {"TMPDIR": str(scratch), "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            [*ALONE, sys.executable, str(ROOT / "scripts" / "mutating" / "worker.py")],
            cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def do(self, job: dict[str, Any]) -> dict[str, Any]:
        """Performs one job and waits for it."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker ended; its tests' output is in {self.folder}/tree/job.log")
        return dict(json.loads(line))

    def end(self) -> None:
        """Ends it and all that runs in it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()


def main() -> int:
    asked = parse()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    kept = Path(tempfile.mkdtemp(prefix="mutate-"))
    workers = [Worker(kept / str(number)) for number in range(asked.processes)]
    try:
        scores = [examine(name, workers, asked) for name in asked.rooms or ROOMS]
    finally:
        for worker in workers:
            worker.end()
        if not asked.keep:
            shutil.rmtree(kept)
    print(f"{'room':12}{'places':>9}{'mutants':>9}{'noticed':>9}{'timeouts':>10}{'survived':>10}{'score':>9}")
    print(*scores, sep="\n")
    return 0


def say(text: str) -> None:
    """How far it is, apart from the table."""
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(ROOMS)}; all of them by default")
    parser.add_argument("--sample", type=int, help="mutants a room, drawn at random; all of them by default")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: 1)")
    parser.add_argument("--files", default="", help="only of files whose path contains this text")
    parser.add_argument("--slowest", type=float, default=math.inf, help="seconds beyond which a test is not asked")
    parser.add_argument("--processes", type=int, default=2, help="mutants tried at a time (default: 2)")
    parser.add_argument("--output", type=Path, help="where ROOM.diff goes (default: mutation/ in the state directory)")
    parser.add_argument("--keep", action="store_true", help="leave the copies of the tree in the temporary folder")
    asked = parser.parse_args()
    if unknown := set(asked.rooms) - ROOMS.keys():
        parser.error(f"no room {', '.join(sorted(unknown))}")
    asked.output = asked.output or Path(os.environ.get("FAULTLINE_HOME", ROOT / ".faultline")) / "mutation"
    asked.output.mkdir(parents=True, exist_ok=True)
    return asked


def examine(name: str, workers: list[Worker], asked: argparse.Namespace) -> str:
    """Tries the sample of one room; returns its line of the table."""
    room = ROOMS[name]
    texts = {path: (ROOT / path).read_text() for path in room.files() if asked.files in path}
    found = [place for path, text in texts.items() for place in places_of(path, text)]
    drawn = random.Random(asked.seed).sample(found, len(found))
    made = (place.mutant(texts[place.path]) for place in drawn)
    sample = list(itertools.islice(filter(None, made), asked.sample))
    known, preload = watch(name, workers, room, asked.slowest)
    free, lock = list(workers), threading.Lock()
    began, done = time.monotonic(), 0

    def attempt(mutant: Mutant) -> str:
        nonlocal done
        seconds = reaching(known, mutant, room.apart)
        with lock:
            worker = free.pop()
        result = worker.do({"path": mutant.path, "code": mutant.after, "seconds": seconds, "packages": preload})
        outcome = OUTCOMES[result["code"]]
        with lock:
            free.append(worker)
            done += 1
            log.write(f"{outcome}\t{mutant.path}:{mutant.line}\t{mutant.operator}\t{result.get('by')}\n")
            log.flush()
            if outcome == "survived":
                diffs.write(f"# {mutant.operator}, {mutant.path}:{mutant.line}, {len(seconds)} tests\n{mutant.diff}\n")
                diffs.flush()
            if done % 20 == 0:
                say(f"{name}: {done} of {len(sample)} in {time.monotonic() - began:.0f} s")
        return outcome

    with (asked.output / f"{name}.log").open("w") as log, (asked.output / f"{name}.diff").open("w") as diffs:
        with ThreadPoolExecutor(len(workers)) as pool:
            counts = collections.Counter(pool.map(attempt, sample))
    noticed = counts["noticed"] + counts["timeout"]
    return (
        f"{name:12}{len(found):9}{len(sample):9}{counts['noticed']:9}{counts['timeout']:10}{counts['survived']:10}"
        f"{noticed / max(1, len(sample)):9.1%}"
    )


def watch(name: str, workers: list[Worker], room: Room, slowest: float) -> tuple[dict[str, Any], list[str]]:
    """Runs the room's tests once: which lines each reaches; the faster half again over a file changed in a comment
    only: what then failed would not be the mutants' doing."""
    worker = workers[0]
    first = worker.do({"watched": room.files(), "targets": list(room.tests)})
    # What it compiled serves all of them: the sources are as old there.
    for other in workers[1:]:
        shutil.copytree(worker.folder / "tree", other.folder / "tree", dirs_exist_ok=True)
    passed = {test: seen for test, seen in first["tests"].items() if test not in first["failed"]}
    known = {test: seen for test, seen in passed.items() if seen["s"] <= slowest}
    if left_out := sorted(set(first["failed"])):
        say(f"{name}: failed or skipped unchanged, not asked: {', '.join(left_out)}")
    if not known:
        raise SystemExit(f"{name}: no test passes; see {worker.folder}/tree/job.log")
    path = room.files()[0]
    fastest = sorted(known, key=lambda test: known[test]["s"])
    same = {"path": path, "code": (ROOT / path).read_text() + "# the same\n"}
    same["seconds"] = {test: known[test]["s"] for test in fastest[: max(1, len(fastest) // 2)]}
    again = worker.do({**same, "packages": first["packages"]})
    if again["code"] != 0:
        raise SystemExit(f"{name}: {again.get('by')} fails, nothing being changed; see {worker.folder}/tree/job.log")
    say(f"{name}: {len(known)} tests, {sum(test['s'] for test in known.values()):.0f} s")
    return known, first["packages"]


def reaching(known: dict[str, Any], mutant: Mutant, apart: tuple[str, ...]) -> dict[str, float]:
    """The tests that reach the mutant's statement, the fastest first, with the seconds they take.

    All of the room for what is run by importing, or in a process of its own, where nobody watched.
    """
    wanted = {(mutant.path, line) for line in mutant.lines}
    reached = {test: {tuple(place) for place in seen["lines"]} for test, seen in known.items()}
    names = [test for test in known if reached[test] & wanted and mutant.path not in apart] or list(known)
    return {test: known[test]["s"] for test in sorted(names, key=lambda test: known[test]["s"])}


if __name__ == "__main__":
    sys.exit(main())
