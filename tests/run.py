"""`./faultline test`: installs the requirements of the tests and runs the layers of tests, one pytest run each.

The packages of requirements-test.lock are installed into `venv/tests`, which is replaced as a whole. An interrupted
installation therefore changes nothing, and a changed lock leaves no old package. The bootstrap has already installed
packages that requirements.lock also lists.
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
    """Test folders that run together. `options`: for pytest. `spark`: whether the tests start Spark."""

    folders: tuple[str, ...]
    options: tuple[str, ...] = ()
    spark: bool = False


# Tests mostly wait, so three processes suit two cores. Tests with shared fixtures run in one (tests/support/groups.py).
_THREE = ("--numprocesses=3", "--quiet")
LAYERS = {
    "static": Layer(("tests/static",)),
    "unit": Layer(("tests/dags", "tests/unit"), _THREE),
    "contract": Layer(("tests/contract",)),
    "component": Layer(("tests/component",), _THREE, spark=True),
    # Measurements need the machine for themselves.
    "system": Layer(("tests/system",), spark=True),
}
# Variable with the path of the layer's summary file: {"counts": {outcome: number}, "bad": [test, …]}.
SUMMARY = "FAULTLINE_TEST_SUMMARY"
COUNTED = ("failed", "passed", "skipped", "deselected", "error")
# Exit codes of pytest.
_INTERRUPTED, _NOTHING_CHOSEN = 2, 5
# Time for a layer to stop its services.
_TO_END_S = 120.0


@dataclass
class Tally:
    """Result of a layer. `status`: pytest's exit code."""

    seconds: float = 0.0
    status: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether the layer passed; an empty selection passes."""
        return self.status in (0, _NOTHING_CHOSEN)


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return layers and pytest's arguments. Without named layers: none if tests are named, else all.

    Layers come first: `unit -k store`, `component tests/component/test_hdfs.py --thorough`.
    """
    count = 0
    while count < len(arguments) and arguments[count] in LAYERS:
        count += 1
    layers, rest = list(arguments[:count]), list(arguments[count:])
    if not layers and not any(map(_names_tests, rest)):
        layers = list(LAYERS)
    return layers, rest


def _names_tests(argument: str) -> bool:
    """Return whether an argument names a test, or a file or folder of tests; `fault` after `-k` does not."""
    path = argument.partition("::")[0]
    return (path == "tests" or "/" in path or path.endswith(".py")) and Path(path).exists()


def run_layers(layers: Sequence[str], arguments: Sequence[str], say: Progress) -> int:
    """Run all layers, even if one fails; return the exit code of the first failure, or 0.

    Prints the seconds per layer, the failed tests, and a closing line in the format of pytest.
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
    """Return the seconds and failures per layer, and the closing line."""
    total = Tally()
    lines = [f"{'layer':<10} {'tests':>6} {'seconds':>8}"]
    for name, one in tallies.items():
        total.seconds += one.seconds
        total.counts += one.counts
        tests = one.counts.total() - one.counts["deselected"]
        lines.append(f"{name:<10} {tests:>6,} {one.seconds:>8.0f}{'' if one.good else f'  status {one.status}'}")
    lines += [f"FAILED {test}" for one in tallies.values() for test in one.bad]
    # An aborted layer has no counts, and must count as an error.
    broken = [name for name, one in tallies.items() if not one.good and not one.bad]
    total.counts["error"] += len(broken)
    lines += [f"FAILED layer {name}: status {tallies[name].status}" for name in broken]
    ends = ", ".join(f"{total.counts[end]} {end}" for end in COUNTED if total.counts[end]) or "no tests ran"
    minutes, seconds = divmod(round(total.seconds), 60)
    text = f" {ends} in {total.seconds:.2f}s ({minutes // 60}:{minutes % 60:02}:{seconds:02}) "
    return [*lines, f"{text:=^100}"]


def _run(layer: Layer, arguments: Sequence[str]) -> Tally:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faultline-tests-") as folder:
        summary_file = Path(folder) / "tally.json"
        # Named tests replace the layer's folders.
        folders = () if any(map(_names_tests, arguments)) else layer.folders
        command = [sys.executable, "-m", "pytest", *folders, *layer.options, *arguments]
        with subprocess.Popen(command, env={**os.environ, SUMMARY: str(summary_file)}, **_interruptible()) as process:
            try:
                process.wait()
            except BaseException:
                _interrupt(process)
                raise
        summary = json.loads(summary_file.read_text()) if summary_file.exists() else {"counts": {}, "bad": []}
    return Tally(time.monotonic() - began, process.returncode, Counter(summary["counts"]), summary["bad"])


def _interruptible() -> dict[str, Any]:
    """Return arguments of Popen that restore SIGINT in a child if this process ignores it.

    A background job of a script ignores SIGINT, and its children inherit that. In a new process group, the child still
    does not receive the terminal's interrupt.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        return {}
    return {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), "process_group": 0}


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Interrupt pytest so that its fixtures clean up; terminate it if that takes too long."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_TO_END_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


def main(given: Sequence[str], say: Progress) -> int:
    """Install missing requirements and run the named layers or tests; return the exit code."""
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
    """Make `venv/tests` match the locks. Raises FaultlineError if that fails."""
    if not (venv / "made-of").exists():
        return  # the bootstrap did not create this environment
    wanted = bootstrap.added_entries((root / LOCK).read_text(), (root / "requirements.lock").read_text())
    if _is_current(venv, wanted):
        return
    try:
        with bootstrap.bootstrap_lock(venv.parent) as lock:
            if not _is_current(venv, wanted):  # another process may have done it meanwhile
                _make(bootstrap.VirtualEnvironment(root, venv.parent, lock, LOCK, "./faultline test"), wanted)
    except OSError as error:
        raise ConfigError(bootstrap.explain_os_error(error, venv)) from error


def _is_current(venv: Path, wanted: str) -> bool:
    """Return whether `venv/tests` holds the lock entries `wanted`; an installation writes `made-of` last."""
    try:
        return (venv / "tests" / "made-of").read_text() == wanted and any(_links(venv))
    except OSError:
        return False


def _make(environment: bootstrap.VirtualEnvironment, wanted: str) -> None:
    folder = environment.venv / "tests"
    part = environment.venv / "tests.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    requirements = part / "made-of.part"
    requirements.write_text(wanted)
    bootstrap.progress(f"adding the packages of {LOCK} to the environment (once; 0.3 GB)")
    environment.install(requirements, "--target", str(part))
    requirements.rename(part / "made-of")
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    # The .pth file appends the folder to the path of every Python of the environment.
    for packages in environment.venv.glob("lib/python3.*/site-packages"):
        bootstrap.write_atomic(packages / "faultline_tests.pth", f"{folder}\n")


def _links(venv: Path) -> list[Path]:
    return list(venv.glob("lib/python3.*/site-packages/faultline_tests.pth"))


# ---- Debian packages with programs that the tests use ----

# Debian package by program.
PACKAGES = {
    "chromium": "chromium",
    "sshd": "openssh-server",
    "initdb": "postgresql",
    "memcached": "memcached",
    "nft": "nftables",
}
# For tests that run only with --thorough.
THOROUGH = {
    "podman": "podman", "runc": "runc", "buildah": "buildah", "catatonit": "catatonit", "debootstrap": "debootstrap",
}  # fmt: skip
# Debian's folders that the PATH of an unprivileged user lacks. The newest version is preferred.
PLACES = ("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/lib/postgresql/*/bin")
INSTALL = "apt-get install -y --no-install-recommends"


def find_program(name: str) -> str | None:
    """Return the path of a program, or None. Debian's is preferred, since related programs are next to it."""
    folders: list[str] = []
    for pattern in PLACES:
        path = Path(pattern)
        found = [str(one) for one in Path(path.anchor).glob(str(path.relative_to(path.anchor)))]
        folders += sorted(found, key=lambda one: [int(part) for part in one.split("/") if part.isdigit()], reverse=True)
    return shutil.which(name, path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))


def package_of(program: str) -> str:
    """Return the Debian package of a program."""
    return {**PACKAGES, **THOROUGH}[program]


def install_missing(log: Path, say: Callable[[str], None], *, thorough: bool = False) -> None:
    """Install missing Debian packages if possible, else report them in one line; tests that need them are skipped.

    Never raises. `thorough`: also install packages for tests that run only with --thorough.
    """
    wanted = {**PACKAGES, **(THOROUGH if thorough else {})}
    packages = _missing(wanted)
    if not packages:
        return
    command = f"{INSTALL} {' '.join(packages)}"
    if not shutil.which("apt-get"):
        say(f"apt-get: not found; skipping tests that need Debian's {', '.join(packages)}")
    elif os.geteuid() != 0:
        say(f"tests: skipping those that need {', '.join(packages)}: installation needs root; fix: sudo {command}")
    else:
        say(f"installing Debian packages for the tests: {', '.join(packages)}")
        # Package lists may be stale or missing; update them only if the first try fails.
        if not (_call(command, log) or (_call("apt-get update", log) and _call(command, log))) or _missing(wanted):
            say(f"tests: skipping those that need {', '.join(_missing(wanted))}: installation failed; see {log}")


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
