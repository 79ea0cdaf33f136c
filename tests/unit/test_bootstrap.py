"""Launcher and bootstrap with fake Pythons and installers; an integration test uses the real ones."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from faultline import bootstrap
from faultline.installation import jars
from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError
from tests.support.scripts import script

ROOT = Path(__file__).resolve().parents[2]
LOCK_TEXT = (ROOT / "requirements.lock").read_text()
# Programs that the launcher calls.
TOOLS = ("sh", "cat", "cksum", "grep", "id", "readlink")


def python_of(path: Path, version: str, then: str = "exit 1") -> Path:
    """Write a fake Python: it prints its version with -c, and runs `then` otherwise."""
    return script(path, f'case $1 in -c) echo {version}; exit 0 ;; esac\necho "$@" >>"{path}.calls"\n{then}')


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """PATH with the launcher's tools and without Python."""
    directory = tmp_path / "tools"
    directory.mkdir()
    for name in TOOLS:
        (directory / name).symlink_to(str(shutil.which(name, path="/usr/bin:/bin")))
    return directory


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Repository with the launcher and its stamped files; the bootstrap never runs."""
    root = tmp_path / "a repository"
    (root / "include" / "faultline").mkdir(parents=True)
    shutil.copy(ROOT / "faultline", root / "faultline")
    for name in bootstrap.STAMPED_FILES:
        (root / name).write_text(f"content of {name}\n")
    (root / "jars.lock").write_text(f"# comment\n{'0' * 64}  g:a:1  a-1.jar  kafka\n")
    return root


def make_ready(root: Path, home: Path) -> None:
    """Create a bootstrapped environment whose Python prints its arguments."""
    script(home / "venv" / "bin" / "python", 'echo "$PWD|$*"')
    jar = home / "jars" / "kafka" / "a-1.jar"
    jar.parent.mkdir(parents=True, exist_ok=True)
    jar.touch()
    (home / "stamp").write_text(bootstrap.stamp_text(root, home))


def launch(
    program: Path, tools: Path, *arguments: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(tools), **(environ or {})}
    command = [str(program), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error line of a refused launch."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("faultline: ")
    return line


@pytest.mark.parametrize(
    ("python", "offered", "words"),
    [
        (None, "", ["needs Python 3.11", "found none", "apt-get install python3 python3-venv"]),
        (None, "python3.12", ["apt-get install python3.12 python3.12-venv"]),
        ("3.9", "", ["python3 is 3.9", "install it with: "]),
    ],
)
def test_without_a_fitting_python_one_line_names_the_command(
    repository: Path, tools: Path, python: str | None, offered: str, words: list[str]
) -> None:
    script(tools / "apt-get", "exit 0")
    if offered:
        script(tools / "apt-cache", f"case $2 in {offered}) echo Package: {offered} ;; *) exit 100 ;; esac")
    if python is not None:
        python_of(tools / "python3", python)
    line = refused(launch(repository / "faultline", tools))
    assert all(word in line for word in words) and (python or line.endswith(words[-1]))


def test_a_stand_in_that_does_not_run_is_passed_over(repository: Path, tools: Path) -> None:
    script(tools / "python3", "echo no version is set >&2; exit 127")
    python_of(tools / "python3.12", "3.12", then="exit 2")
    launch(repository / "faultline", tools)
    assert (tools / "python3.12.calls").read_text().startswith("-I ")


def test_faultline_python_is_used_or_refused(repository: Path, tools: Path, tmp_path: Path) -> None:
    python_of(tools / "python3", "3.11")
    old = python_of(tmp_path / "old", "3.9")
    for named, message in ((old, f"FAULTLINE_PYTHON={old} is Python 3.9"), ("/no/such", "FAULTLINE_PYTHON=/no/such")):
        line = refused(launch(repository / "faultline", tools, environ={"FAULTLINE_PYTHON": str(named)}))
        assert message in line and "unset it" in line
    assert not (tools / "python3.calls").exists()


def test_a_ready_launcher_starts_from_any_directory_and_through_links(
    repository: Path, tools: Path, tmp_path: Path
) -> None:
    make_ready(repository, repository / ".faultline")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "absolute").symlink_to(repository / "faultline")
    (elsewhere / "relative").symlink_to("absolute")
    expected = f"{elsewhere}|-P -m faultline run word_count a b=1\n"
    arguments = ("run", "word_count", "a b=1")
    for program in (repository / "faultline", elsewhere / "absolute", elsewhere / "relative"):
        done = launch(program, tools, *arguments, cwd=elsewhere)
        assert (done.returncode, done.stdout, done.stderr) == (0, expected, ""), program
    # A name without any directory.
    assert launch(tools / "sh", tools, "relative", *arguments, cwd=elsewhere).stdout == expected


def test_once_ready_it_costs_milliseconds(repository: Path, tools: Path) -> None:
    home = repository / ".faultline"
    for name in ("jars.lock", "requirements.lock"):
        shutil.copy(ROOT / name, repository / name)
    for jar in jars.read_lock():
        jar.path(home).parent.mkdir(parents=True, exist_ok=True)
        jar.path(home).touch()
    make_ready(repository, home)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        assert launch(repository / "faultline", tools).returncode == 0
        times.append(time.perf_counter() - started)
    # 10 ms measured; the bound leaves room for a busy machine.
    assert min(times) < 0.2


def test_the_state_directory_can_lie_elsewhere(repository: Path, tools: Path, tmp_path: Path) -> None:
    make_ready(repository, tmp_path / "state")
    # Only tests need it.
    (repository / "requirements-test.lock").write_text("changed\n")
    for value in (str(tmp_path / "state"), "state"):
        done = launch(repository / "faultline", tools, "up", cwd=tmp_path, environ={"FAULTLINE_HOME": value})
        assert done.stdout == f"{tmp_path}|-P -m faultline up\n"


@pytest.mark.parametrize(
    "change", [*bootstrap.STAMPED_FILES, "stamp", "jars/kafka/a-1.jar", "venv/bin/python", "place"]
)
def test_any_change_brings_the_bootstrap_back(repository: Path, tools: Path, tmp_path: Path, change: str) -> None:
    home = repository / ".faultline"
    make_ready(repository, home)
    if change in ("stamp", "jars/kafka/a-1.jar", "venv/bin/python"):
        (home / change).unlink()
    elif change == "place":
        repository = repository.rename(tmp_path / "moved")
    else:
        with (repository / change).open("a") as stream:
            stream.write("# changed\n")
    python_of(tools / "python3", "3.11", then="exit 130")
    assert launch(repository / "faultline", tools).returncode == 130, "its exit code is passed on"
    called = (tools / "python3.calls").read_text()
    assert called == f"-I {repository}/include/faultline/bootstrap.py\n"


def test_the_stamp_is_what_the_launcher_computes(repository: Path) -> None:
    root, home, *files = bootstrap.stamp_text(repository, repository / ".faultline").splitlines()
    assert (root, home) == (str(repository), str(repository / ".faultline"))
    assert [line.split(" ", 2)[2] for line in files] == list(bootstrap.STAMPED_FILES)


def test_every_locked_package_has_hashes_and_the_engines_versions_agree() -> None:
    first = bootstrap.lock_entries(LOCK_TEXT, bootstrap.SEED_PACKAGES)
    assert [line.split("==")[0] for line in first.splitlines() if not line.startswith(" ")] == list(
        bootstrap.SEED_PACKAGES
    )
    assert first.count("--hash=sha256:") > 2 and "#" not in first and not first.rstrip().endswith("\\")
    pins = [line for line in LOCK_TEXT.splitlines() if line[:1].isalnum()]
    assert len(pins) > 100
    assert all(line.endswith("\\") and "==" in line for line in pins)
    versions = {line.split("==")[0]: line.split("==")[1].split()[0] for line in pins}
    assert versions["pyspark"] == versions["pyspark-client"] == "4.2.0"


@pytest.mark.parametrize(
    ("output", "kind", "words"),
    [
        ("error: failed to write: No space left on device (os error 28)", ConfigError, "disk full"),
        ("  × Failed to download `a==1`\n  ╰─▶ Hash mismatch for `a==1`", ConfigError, "a==1 differs"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES\n  a==1 from x://y (from -r f):\n", ConfigError, "a==1"),
        ("error sending request for url\n dns error", InfrastructureError, "unreachable"),
        ("WARNING: Retrying (Retry(total=4)) after connection broken", InfrastructureError, "unreachable"),
        ("something\nerror: odd thing\n\n", InfrastructureError, "failed: error: odd thing;"),
        ("", InfrastructureError, "no output"),
    ],
)
def test_explanations(output: str, kind: type[FaultlineError], words: str) -> None:
    error = bootstrap.explain(output, "installing", Path("log"))
    assert type(error) is kind
    assert words in str(error) and "\n" not in str(error)
    assert "; fix: " in str(error)


def test_os_errors_are_explained() -> None:
    remedies = {errno.ENOSPC: "disk full", errno.EACCES: "make it writable", errno.EROFS: "FAULTLINE_HOME"}
    for number, words in remedies.items():
        text = bootstrap.explain_os_error(OSError(number, os.strerror(number), "/state/x"), Path("/state"))
        assert text.startswith("/state/x: ") and words in text


@pytest.fixture
def made(repository: Path, tmp_path: Path) -> bootstrap.VirtualEnvironment:
    (tmp_path / "state").mkdir()
    return bootstrap.VirtualEnvironment(
        repository, tmp_path / "state", lock=sys.__stdout__.fileno() if sys.__stdout__ else 1
    )


LITTLE = shutil.disk_usage("/")._replace(free=1_000_000_000)


@pytest.mark.parametrize(
    ("asked", "answer", "message"),
    [
        ("importlib.util.find_spec", None, r"fix: (sudo )?apt-get install python3(\.\d+)?-venv$"),
        ("shutil.disk_usage", LITTLE, r"got 1\.0 GB of free disk; expected 3 GB"),
    ],
    ids=["ensurepip", "disk"],
)
def test_what_the_machine_lacks_is_refused_before_anything_is_made(
    made: bootstrap.VirtualEnvironment, monkeypatch: pytest.MonkeyPatch, asked: str, answer: object, message: str
) -> None:
    monkeypatch.setattr(f"faultline.bootstrap.{asked}", lambda _: answer)
    with pytest.raises(ConfigError, match=message):
        made.make()
    assert list(made.venv.parent.iterdir()) == []


class Installer:
    """Fake of Environment._run that creates an empty venv and answers commands from a plan."""

    def __init__(self, venv: Path, failures: Mapping[str, str]) -> None:
        self.venv, self.failures = venv, failures
        self.calls: list[str] = []

    def __call__(self, command: list[str]) -> str | None:
        name = "venv" if "venv" in command else "uv" if command[0].endswith("/uv") else "pip"
        if name == "venv":
            (self.venv / "lib" / f"python3.{sys.version_info.minor}" / "site-packages").mkdir(parents=True)
            script(self.venv / "bin" / "python", "exit 0")
        if name == "pip" and str(self.venv / "first.txt") in command:
            name = "first"
        self.calls.append(name)
        return self.failures.get(name)


@pytest.mark.parametrize(
    ("failures", "calls", "error"),
    [
        ({}, ["venv", "first", "uv"], None),
        ({"uv": "dns error"}, ["venv", "first", "uv", "pip"], None),
        ({"uv": "Hash mismatch for `a==1`"}, ["venv", "first", "uv"], ConfigError),
        ({"uv": "odd", "pip": "Errno 28"}, ["venv", "first", "uv", "pip"], ConfigError),
        ({"first": "Connection refused"}, ["venv", "first"], InfrastructureError),
    ],
)
def test_installers_in_order(
    made: bootstrap.VirtualEnvironment,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: dict[str, str],
    calls: list[str],
    error: type[FaultlineError] | None,
) -> None:
    half = script(made.venv / "half", "exit 0")
    installer = Installer(made.venv, failures)
    monkeypatch.setattr(made, "_run", installer)
    monkeypatch.setattr(made, "_check_machine", lambda: None)
    if error is None:
        made.make()
        pth = next(made.venv.glob("lib/*/site-packages/faultline.pth"))
        assert pth.read_text() == f"{repository}/include\n{repository}\n"
        made.make()  # complete: nothing is installed again
    else:
        with pytest.raises(error):
            made.make()
        assert not (made.venv / "made-of").exists()
    assert installer.calls == calls and not half.exists(), "an incomplete environment is removed"


def test_a_second_bootstrap_waits_for_the_first(tmp_path: Path) -> None:
    home = tmp_path / "state"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from faultline import bootstrap\n"
        "with bootstrap.bootstrap_lock(Path(sys.argv[2])): print('inside', flush=True)\n"
    )
    command = [sys.executable, "-c", code, str(ROOT / "include"), str(home)]
    with bootstrap.bootstrap_lock(home):
        second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert second.stderr is not None
        assert "waiting for" in second.stderr.readline()
        assert second.poll() is None
    out, _ = second.communicate(timeout=120)
    assert out == "inside\n" and second.returncode == 0
