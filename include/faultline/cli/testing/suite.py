"""The test suite in layers, each a run of pytest by itself: from what takes seconds to what measures for minutes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faultline.system.text import Say


@dataclass(frozen=True)
class Layer:
    """Folders of tests that run together. `options`: pytest's own. `spark`: whether it starts Spark's programs."""

    folders: tuple[str, ...]
    options: tuple[str, ...] = ()
    spark: bool = False


# One more than the cores, since much is waited for; what shares a cost stays in one (tests/support/groups.py).
_THREE = ("--numprocesses=3", "--quiet")
LAYERS = {
    "static": Layer(("tests/static",)),
    "unit": Layer(("tests/dags", "tests/unit"), _THREE),
    "contract": Layer(("tests/contract",)),
    "component": Layer(("tests/component",), _THREE, spark=True),
    # What is measured needs the machine for itself.
    "system": Layer(("tests/system",), spark=True),
}
# Names the file in which a layer leaves how many tests had which end: {"counts": {end: number}, "bad": [test, …]}.
TALLY = "FAULTLINE_TALLY"
COUNTED = ("failed", "passed", "skipped", "deselected", "error")
# Exit codes of pytest.
_INTERRUPTED, _NOTHING_CHOSEN = 2, 5
# Seconds that a layer has to take its services down.
_TO_END_S = 120.0


@dataclass
class Tally:
    """What became of a layer. `status`: pytest's exit code."""

    seconds: float = 0.0
    status: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Nothing failed; that a choice of tests has none in this layer is no failure."""
        return self.status in (0, _NOTHING_CHOSEN)


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Layers and pytest's arguments; no layers when single tests are named, all when neither is.

    Layers are named before everything else: `unit -k store`, `component tests/component/test_hdfs.py --thorough`.
    """
    named = 0
    while named < len(arguments) and arguments[named] in LAYERS:
        named += 1
    layers, rest = list(arguments[:named]), list(arguments[named:])
    if not layers and not any(map(_names_tests, rest)):
        layers = list(LAYERS)
    return layers, rest


def _names_tests(argument: str) -> bool:
    """Whether an argument is a file or folder of tests, or a test in one; `fault` behind a `-k` is a word."""
    path = argument.partition("::")[0]
    return (path == "tests" or "/" in path or path.endswith(".py")) and Path(path).exists()


def run_layers(layers: Sequence[str], arguments: Sequence[str], say: Say) -> int:
    """Runs the layers one after another, also those after one that failed; the exit code of the whole.

    Ends with seconds by layer, the tests that failed, and a closing line as pytest's own.
    """
    tallies: dict[str, Tally] = {}
    for name in layers:
        say(f"tests: {name}")
        tallies[name] = _run(LAYERS[name], arguments)
        if tallies[name].status == _INTERRUPTED:
            break
    print("\n".join(closing_lines(tallies)), flush=True)
    return next((one.status for one in tallies.values() if not one.good), 0)


def closing_lines(tallies: dict[str, Tally]) -> list[str]:
    """The seconds by layer, what failed in it, and the closing line of all."""
    whole = Tally()
    lines = [f"{'layer':<10} {'tests':>6} {'seconds':>8}"]
    for name, one in tallies.items():
        whole.seconds += one.seconds
        whole.counts += one.counts
        tests = one.counts.total() - one.counts["deselected"]
        lines.append(f"{name:<10} {tests:>6,} {one.seconds:>8.0f}{'' if one.good else f'  status {one.status}'}")
    lines += [f"FAILED {test}" for one in tallies.values() for test in one.bad]
    # A layer that did not come to its end has no counts, and must not read as if all were well.
    broken = [name for name, one in tallies.items() if not one.good and not one.bad]
    whole.counts["error"] += len(broken)
    lines += [f"FAILED layer {name}: status {tallies[name].status}" for name in broken]
    ends = ", ".join(f"{whole.counts[end]} {end}" for end in COUNTED if whole.counts[end]) or "no tests ran"
    minutes, seconds = divmod(round(whole.seconds), 60)
    text = f" {ends} in {whole.seconds:.2f}s ({minutes // 60}:{minutes % 60:02}:{seconds:02}) "
    return [*lines, f"{text:=^100}"]


def _run(layer: Layer, arguments: Sequence[str]) -> Tally:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faultline-tests-") as folder:
        left = Path(folder) / "tally.json"
        # A path is run in place of the layer's folders, as tests of that layer are.
        folders = () if any(map(_names_tests, arguments)) else layer.folders
        command = [sys.executable, "-m", "pytest", *folders, *layer.options, *arguments]
        with subprocess.Popen(command, env={**os.environ, TALLY: str(left)}) as process:
            try:
                process.wait()
            except BaseException:
                _interrupt(process)
                raise
        told = json.loads(left.read_text()) if left.exists() else {"counts": {}, "bad": []}
    return Tally(time.monotonic() - began, process.returncode, Counter(told["counts"]), told["bad"])


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Ends a run of pytest so that its fixtures end what they have started, if it lets itself be interrupted."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_TO_END_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
