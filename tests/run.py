"""`./faultline test`: brings what only the tests need, and runs their layers, each a run of pytest by itself.

The packages of requirements-test.lock lie in a folder of their own inside the environment, `venv/tests`, which is made
elsewhere and put in place whole: an installation that broke off changes nothing, a changed lock leaves no package of
before, and what a user runs is never written to. What both locks hold is installed once, by the bootstrap.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faultline import bootstrap
from faultline.system.errors import ConfigError
from faultline.system.text import Progress


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
SUMMARY = "FAULTLINE_TEST_SUMMARY"
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
    """Return layers and pytest's arguments; no layers when single tests are named, all when neither is.

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
    """Return whether an argument is a file or folder of tests, or a test in one; `fault` behind a `-k` is a word."""
    path = argument.partition("::")[0]
    return (path == "tests" or "/" in path or path.endswith(".py")) and Path(path).exists()


def run_layers(layers: Sequence[str], arguments: Sequence[str], say: Progress) -> int:
    """Run the layers one after another, also those after one that failed; the exit code of the whole.

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
    """Return the seconds by layer, what failed in it, and the closing line of all."""
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
        with subprocess.Popen(command, env={**os.environ, SUMMARY: str(left)}, **_that_can_be_interrupted()) as process:
            try:
                process.wait()
            except BaseException:
                _interrupt(process)
                raise
        told = json.loads(left.read_text()) if left.exists() else {"counts": {}, "bad": []}
    return Tally(time.monotonic() - began, process.returncode, Counter(told["counts"]), told["bad"])


def _that_can_be_interrupted() -> dict[str, Any]:
    """How a child is started that heeds the interrupt of `_interrupt` where this process ignores such, as a job in the
    background of a script does: children inherit that. A terminal's interrupt goes on passing it by."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        return {}
    return {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), "process_group": 0}


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """End a run of pytest so that its fixtures end what they have started, if it lets itself be interrupted."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_TO_END_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


def main(given: Sequence[str], say: Progress) -> int:
    """Bring what is missing, and runs the layers or the single tests that are named; the exit code."""
    from faultline.installation.cds_archive import make_archive
    from faultline.system.settings import ROOT, load_settings

    add_packages(ROOT, Path(sys.prefix))
    install_missing(Path(sys.prefix).parent / "logs" / "debian.log", say, thorough="--thorough" in given)
    os.chdir(ROOT)
    layers, arguments = split_arguments(given)
    if not layers:
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])
    if any(LAYERS[name].spark for name in layers):
        make_archive(load_settings(), say)
    return run_layers(layers, arguments, say)


# ---- The packages of requirements-test.lock ----

LOCK = "requirements-test.lock"


def add_packages(root: Path, venv: Path) -> None:
    """Bring `venv/tests` to what the locks say; does nothing when it is so. Raises FaultlineError."""
    if not (venv / "made-of").exists():
        return  # an environment that somebody else made, and looks after
    wanted = bootstrap.added_entries((root / LOCK).read_text(), (root / "requirements.lock").read_text())
    if _ready(venv, wanted):
        return
    try:
        with bootstrap.bootstrap_lock(venv.parent) as lock:
            if not _ready(venv, wanted):  # another caller may have done it while this one waited
                _make(bootstrap.VirtualEnvironment(root, venv.parent, lock, LOCK, "./faultline test"), wanted)
    except OSError as error:
        raise ConfigError(bootstrap.explain_os_error(error, venv)) from error


def _ready(venv: Path, wanted: str) -> bool:
    """Return the copy of what was asked for is written last, and moves with the folder."""
    try:
        return (venv / "tests" / "made-of").read_text() == wanted and any(_links(venv))
    except OSError:
        return False


def _make(environment: bootstrap.VirtualEnvironment, wanted: str) -> None:
    folder = environment.venv / "tests"
    part = environment.venv / "tests.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    asked = part / "made-of.part"
    asked.write_text(wanted)
    bootstrap.progress(f"adding the packages of {LOCK} to the environment (once; 0.3 GB)")
    environment.install(asked, "--target", str(part))
    asked.rename(part / "made-of")
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    # A .pth file, so that every Python of the environment finds them, after everything else.
    for packages in environment.venv.glob("lib/python3.*/site-packages"):
        bootstrap.write_atomic(packages / "faultline_tests.pth", f"{folder}\n")


def _links(venv: Path) -> list[Path]:
    return list(venv.glob("lib/python3.*/site-packages/faultline_tests.pth"))


# ---- The Debian packages whose programs the tests use, and where such programs lie ----

# Program: package.
PACKAGES = {
    "chromium": "chromium",
    "sshd": "openssh-server",
    "initdb": "postgresql",
    "memcached": "memcached",
    "nft": "nftables",
}
# Of tests that run with --thorough only.
THOROUGH = {
    "podman": "podman", "runc": "runc", "buildah": "buildah", "catatonit": "catatonit", "debootstrap": "debootstrap",
}  # fmt: skip
# Where Debian puts programs that an ordinary user's PATH does not reach. Of several versions the newest is taken.
PLACES = ("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/lib/postgresql/*/bin")
INSTALL = "apt-get install -y --no-install-recommends"


def find_program(name: str) -> str | None:
    """Return its path, if it is there; Debian's own comes first, since the programs that belong to it lie beside it."""
    folders: list[str] = []
    for place in PLACES:
        path = Path(place)
        found = [str(one) for one in Path(path.anchor).glob(str(path.relative_to(path.anchor)))]
        folders += sorted(found, key=lambda one: [int(part) for part in one.split("/") if part.isdigit()], reverse=True)
    return shutil.which(name, path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))


def package_of(program: str) -> str:
    """Return the package that brings a program."""
    return {**PACKAGES, **THOROUGH}[program]


def install_missing(log: Path, say: Callable[[str], None], *, thorough: bool = False) -> None:
    """Install what the tests lack, where that is possible, else says so in one line. Never raises: they skip.

    `thorough`: also what only the thorough ones need.
    """
    wanted = {**PACKAGES, **(THOROUGH if thorough else {})}
    packages = _missing(wanted)
    if not packages:
        return
    command = f"{INSTALL} {' '.join(packages)}"
    if not shutil.which("apt-get"):
        say(f"no apt-get here: tests are skipped that need the programs of Debian's {', '.join(packages)}")
    elif os.geteuid() != 0:
        say(f"tests that need {', '.join(packages)} are skipped, since only root can install; run: sudo {command}")
    else:
        say(f"installing Debian packages for the tests: {', '.join(packages)}")
        # The lists may be stale or absent; they are fetched only when the first try fails.
        if not (_call(command, log) or (_call("apt-get update", log) and _call(command, log))) or _missing(wanted):
            say(f"tests that need {', '.join(_missing(wanted))} are skipped, since that failed; see {log}")


def _missing(wanted: Mapping[str, str]) -> Sequence[str]:
    return [package for name, package in wanted.items() if find_program(name) is None]


def _call(command: str, log: Path) -> bool:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as output:
            done = subprocess.run(
                command.split(),
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
    except OSError:
        return False
    return done.returncode == 0
