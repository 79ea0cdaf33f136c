"""`./faultline test`: layers, Debian packages and Python packages, with simulated installers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from faultline import bootstrap
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import ROOT
from faultline.system.waiting import wait_until
from tests import run as suite
from tests.run import LAYERS, Layer, Tally, closing_lines, run_layers, split_arguments
from tests.support.needs import needed
from tests.support.processes import EVENT_S

# Plugins take longer to load than the tests of a child pytest.
WITHOUT_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.mark.parametrize(
    ("given", "layers", "rest"),
    [
        ([], list(LAYERS), []),
        (["unit"], ["unit"], []),
        (["system", "static", "-k", "unit"], ["system", "static"], ["-k", "unit"]),
        (["--thorough"], list(LAYERS), ["--thorough"]),
        (["-k", "store"], list(LAYERS), ["-k", "store"]),
        (["-k", "fault"], list(LAYERS), ["-k", "fault"]),  # a folder of the project, too
        (["tests"], [], ["tests"]),
        (["tests/unit/records", "-x"], [], ["tests/unit/records", "-x"]),
        (["-q", "tests/unit/test_cli.py::test_x"], [], ["-q", "tests/unit/test_cli.py::test_x"]),
        (["unit", "tests/unit/records"], ["unit"], ["tests/unit/records"]),
    ],
)
def test_arguments_are_split_into_layers_and_pytest_arguments(
    given: list[str], layers: list[str], rest: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert split_arguments(given) == (layers, rest)


def test_every_test_file_belongs_to_one_layer() -> None:
    folders = [folder for layer in LAYERS.values() for folder in layer.folders]
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert sum(path.is_relative_to(ROOT / folder) for folder in folders) == 1, path


def test_the_closing_line_sums_the_layers() -> None:
    failed = Counter(passed=1500, failed=1, skipped=2, deselected=3)
    tallies = {
        "static": Tally(59.6, 0, Counter(passed=48)),
        "unit": Tally(120.0, 1, failed, ["tests/unit/a.py::test_b"]),
        "system": Tally(3600.0, suite._NOTHING_CHOSEN, Counter(deselected=9)),
    }
    lines = closing_lines(tallies)
    shown = [" ".join(line.split()[:3]) for line in lines[1:4]]
    assert shown == ["static 48 60", "unit 1,503 120", "system 0 3600"]
    assert lines[4] == "FAILED tests/unit/a.py::test_b"
    assert lines[5].strip("= ") == "1 failed, 1548 passed, 2 skipped, 12 deselected in 3779.60s (1:03:00)"
    assert lines[5].startswith("==") and lines[5].endswith("==")
    lines = closing_lines({"unit": Tally(1.0, 3)})
    assert "FAILED layer unit: status 3" in lines, "it broke off"
    assert lines[-1].strip("= ") == "1 error in 1.00s (0:00:01)"


def test_a_failed_layer_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One layer fails, one passes, one has no selected test."""
    tests = {"bad": "def test_1(): assert False\n", "good": "def test_1(): pass\ndef test_2(): pass\n", "none": ""}
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    hook = (ROOT / "tests" / "conftest.py").read_text().partition("def pytest_terminal_summary")
    (tmp_path / "conftest.py").write_text(
        "import json, os\nimport pytest\nfrom pathlib import Path\n"
        f"from tests.run import COUNTED, SUMMARY\n{''.join(hook[1:])}"
    )
    for name, text in tests.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "test_it.py").write_text(text)
    monkeypatch.setattr(suite, "LAYERS", {name: Layer((name,), ("-p", "no:cacheprovider")) for name in tests})
    monkeypatch.chdir(tmp_path)
    for key, value in {"PYTHONPATH": f"{ROOT / 'include'}:{ROOT}", **WITHOUT_PLUGINS}.items():
        monkeypatch.setenv(key, value)
    lines: list[str] = []
    assert run_layers(list(tests), [], lines.append) == 1
    assert lines == ["tests: bad", "tests: good", "tests: none"]
    lines = capfd.readouterr().out.splitlines()
    assert "FAILED bad/test_it.py::test_1" in lines
    assert lines[-1].strip("= ").startswith("1 failed, 2 passed in ")
    # A path replaces the folders.
    assert run_layers(["bad"], ["good/test_it.py"], lines.append) == 0
    assert capfd.readouterr().out.splitlines()[-1].strip("= ").startswith("2 passed in ")


PROGRAM = """
import sys
from pathlib import Path
from faultline.cli.main import main
from faultline.system import settings
from tests import run as suite

settings.ROOT = Path.cwd()
suite.add_packages = suite.install_missing = lambda *given, **named: None
suite.LAYERS = {"only": suite.Layer(("only",), ("-p", "no:cacheprovider"))}
sys.argv = ["./faultline", "test", "only"]
main()
"""
LASTING = """
import subprocess
import time
from pathlib import Path
import pytest

@pytest.fixture
def service():
    with subprocess.Popen(["sleep", "900"]) as process:
        yield process.pid
        process.kill()
    Path("ended").touch()

def test_it(service):
    Path("begun.part").write_text(str(service))
    Path("begun.part").rename("begun")
    time.sleep(900)
"""


@pytest.mark.parametrize("ignored", [False, True], ids=["in front", "in the background of a script"])
def test_an_interrupted_runner_finalises_its_fixtures(tmp_path: Path, ignored: bool) -> None:
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "test_it.py").write_text(LASTING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    how = signal.SIG_IGN if ignored else signal.SIG_DFL
    with (tmp_path / "said").open("w") as lines:
        runner = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=tmp_path,
            env={**os.environ, **WITHOUT_PLUGINS, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=lines,
            stderr=lines,
            preexec_fn=lambda: signal.signal(signal.SIGINT, how),
        )
    below = list[psutil.Process]()
    try:
        wait_until(
            (tmp_path / "begun").exists,
            timeout_s=EVENT_S,
            what="the test",
            alive=lambda: None if runner.poll() is None else (tmp_path / "said").read_text(),
        )
        below = psutil.Process(runner.pid).children(recursive=True)
        assert int((tmp_path / "begun").read_text()) in [one.pid for one in below]
        runner.send_signal(signal.SIGTERM)
        assert runner.wait(suite._TO_END_S / 2) == 1, (tmp_path / "said").read_text()
        assert (tmp_path / "ended").exists() and not [one for one in below if one.is_running()]
    finally:
        for one in [*below, runner]:
            with contextlib.suppress(psutil.Error):
                one.kill()
        runner.wait()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH, with every program except chromium."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(suite, "PLACES", ())
    monkeypatch.setattr("tests.run.os.geteuid", lambda: 0)
    for name in set(suite.PACKAGES) - {"chromium"}:
        fake_program(folder, name)
    return folder


def fake_program(folder: Path, name: str, body: str = "") -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def install_debian(tmp_path: Path, **named: bool) -> list[str]:
    lines: list[str] = []
    suite.install_missing(tmp_path / "logs" / "debian.log", lines.append, **named)
    return lines


def called(tmp_path: Path) -> list[str]:
    """Return the arguments of the calls of apt-get."""
    path = tmp_path / "called"
    return path.read_text().splitlines() if path.exists() else []


def puts(programs: Path, *names: str) -> str:
    """Return the script of an apt-get that installs these programs and logs its arguments."""
    made = "; ".join(f"echo '#!/bin/sh' >{programs}/{name}; /bin/chmod +x {programs}/{name}" for name in names)
    return f'echo "$DEBIAN_FRONTEND $*" >>{programs.parent}/called; {made}'


def test_only_missing_packages_are_installed(programs: Path, tmp_path: Path) -> None:
    fake_program(programs, "apt-get", puts(programs, "chromium"))
    assert install_debian(tmp_path) == ["installing Debian packages for the tests: chromium"]
    assert called(tmp_path) == ["noninteractive install -y --no-install-recommends chromium"]
    assert install_debian(tmp_path) == [] and len(called(tmp_path)) == 1


def test_packages_of_thorough_tests_are_installed_only_for_them(programs: Path, tmp_path: Path) -> None:
    fake_program(programs, "chromium")
    fake_program(programs, "apt-get", puts(programs, *suite.THOROUGH))
    assert install_debian(tmp_path) == []
    (lines,) = install_debian(tmp_path, thorough=True)
    assert "podman" in lines and "runc" in called(tmp_path)[0]


def test_package_lists_are_updated_after_a_failed_install(programs: Path, tmp_path: Path) -> None:
    lists = f"[ $1 = update ] && echo >{tmp_path}/lists; [ -f {tmp_path}/lists ]"
    fake_program(programs, "apt-get", f"echo $1 >>{tmp_path}/called; {lists}")
    lines = install_debian(tmp_path)
    assert called(tmp_path) == ["install", "update", "install"]
    # apt-get succeeds, but the program is still missing.
    assert lines[1].startswith("tests: skipping those that need chromium")


@pytest.mark.parametrize(
    ("user", "apt", "words"),
    [
        (0, "echo no network; exit 100", "tests: skipping those that need chromium: installation failed"),
        (1000, "exit 100", "fix: sudo apt-get install -y --no-install-recommends chromium"),
        (0, None, "apt-get: not found; "),
    ],
)
def test_a_failed_installation_is_one_line(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, apt: str | None, words: str
) -> None:
    monkeypatch.setattr("tests.run.os.geteuid", lambda: user)
    if apt:
        fake_program(programs, "apt-get", apt)
    lines = install_debian(tmp_path)
    assert words in lines[-1] and not any("\n" in line for line in lines)
    if user == 0 and apt:
        assert "no network" in (tmp_path / "logs" / "debian.log").read_text()


def test_an_unusable_apt_or_log_is_no_error(programs: Path, tmp_path: Path) -> None:
    (programs / "apt-get").write_bytes(b"\x7fELF")
    (programs / "apt-get").chmod(0o755)
    assert "installation failed" in install_debian(tmp_path)[-1]
    (tmp_path / "file").touch()
    lines: list[str] = []
    suite.install_missing(tmp_path / "file" / "log", lines.append)
    assert "installation failed" in lines[-1]


def test_programs_outside_path_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("9", "15", "17"):
        (tmp_path / version / "bin").mkdir(parents=True)
        fake_program(tmp_path / version / "bin", "initdb")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(suite, "PLACES", ("/no/such", f"{tmp_path}/*/bin"))
    assert suite.find_program("initdb") == f"{tmp_path}/17/bin/initdb"
    assert suite.find_program("sshd") is None


def test_tests_of_a_missing_program_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "from tests import run as suite\n"
        "from tests.support.needs import needed, pytest_runtest_makereport\n"
        "suite.PLACES = ()\n"
        "@pytest.fixture(scope='module')\n"
        "def sshd(): return needed('sshd')\n"
    )
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(
            "from tests.support.needs import needed\n"
            "def test_1(sshd): assert False\n"
            "def test_2(sshd): assert False\n"
            "def test_3(): needed('memcached'); assert False\n"
            "def test_4(): assert needed('initdb')\n"
        )
    fake_program(tmp_path, "initdb")
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    options += ["-p", "pytest_timeout"]  # has a key in that file
    environment = {**os.environ, **WITHOUT_PLUGINS, "PATH": str(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'include'}"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert [line.split()[1] for line in lines] == ["[4]", "[2]"], done.stdout
    assert lines[0].endswith("sshd is missing: apt-get install -y --no-install-recommends openssh-server")
    assert lines[1].endswith("memcached is missing: apt-get install -y --no-install-recommends memcached")
    assert "2 passed, 6 skipped" in done.stdout


def test_an_installed_program_is_returned(programs: Path) -> None:
    assert needed("sshd") == str(programs / "sshd")
    with pytest.raises(pytest.skip.Exception, match="chromium is missing"):
        needed("chromium")


BOTH = "both==1 \\\n    --hash=sha256:0\n"
ADDED = "other==2 ; b \\\n    --hash=sha256:1\npytest==3 \\\n    --hash=sha256:2\n"
USERS = BOTH + ADDED[: ADDED.index("pytest")].replace("; b", "; a")
TESTS = f"# head\n{BOTH}    # via x\n{ADDED}"


class Installer:
    """Replacement of Environment._run: install a package, or return `failure`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failure: str | None = None
        self.calls: list[str] = []
        self.asked = ""
        monkeypatch.setattr(bootstrap.VirtualEnvironment, "_run", lambda _, command: self.run(command))

    def run(self, command: list[str]) -> str | None:
        self.calls.append(Path(command[0]).name)
        assert "--require-hashes" in command and "--no-deps" in command
        self.asked = Path(command[command.index("-r") + 1]).read_text()
        (Path(command[command.index("--target") + 1]) / "pytest").write_text(f"{len(self.calls)}")
        return self.failure


@dataclass
class Place:
    """Repository with lock files, an environment, and a simulated installer."""

    root: Path
    venv: Path
    installer: Installer

    def add(self) -> None:
        suite.add_packages(self.root, self.venv)

    def lock(self, text: str, name: str = suite.LOCK) -> None:
        (self.root / name).write_text(text)

    def links(self) -> list[Path]:
        return [*self.venv.glob("lib/*/site-packages/faultline_tests.pth")]


NEWER = TESTS.replace("pytest==3", "pytest==4")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path / "repository", tmp_path / "home" / "venv", Installer(monkeypatch))
    made.root.mkdir()
    made.lock(USERS, "requirements.lock")
    made.lock(TESTS)
    (made.venv / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (made.venv / "made-of").touch()
    return made


def test_only_additional_packages_are_installed_once(place: Place) -> None:
    place.add()
    place.add()
    assert place.installer.calls == ["uv"] and place.installer.asked == ADDED
    assert (place.venv / "tests" / "pytest").read_text() == "1"
    assert [link.read_text() for link in place.links()] == [f"{place.venv}/tests\n"]
    assert not (place.venv / "tests.part").exists()


@pytest.mark.parametrize(
    ("change", "calls"),
    [
        (lambda place: place.lock(NEWER), 2),
        (lambda place: place.lock(USERS.replace("both==1", "both==2"), "requirements.lock"), 2),
        (lambda place: shutil.rmtree(place.venv / "tests"), 2),
        (lambda place: place.links()[0].unlink(), 2),
        (lambda place: None, 1),
    ],
    ids=["lock", "users lock", "folder", "link", "nothing"],
)
def test_a_change_starts_the_installer_again(place: Place, change: Callable[[Place], None], calls: int) -> None:
    place.add()
    (place.venv / "tests" / "of before").touch()
    change(place)
    place.add()
    assert len(place.installer.calls) == calls
    assert (place.venv / "tests" / "of before").exists() == (calls == 1), "a package of before is gone"


def test_an_interrupted_installation_is_repeated(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.add()
    place.lock(NEWER)
    whole = place.installer.run

    def interrupted(command: list[str]) -> None:
        whole(command)
        raise KeyboardInterrupt

    monkeypatch.setattr(place.installer, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        place.add()
    tests = place.venv / "tests"
    assert (tests / "pytest").read_text() == "1"
    (place.venv / "tests.part" / "half").touch()
    monkeypatch.setattr(place.installer, "run", whole)
    place.add()
    assert (tests / "pytest").read_text() == "3" and not (tests / "half").exists()


@pytest.mark.parametrize(
    ("failure", "calls", "kind", "words"),
    [
        ("dns error", ["uv", "python"], InfrastructureError, "package index unreachable"),
        ("Hash mismatch for `a==1`", ["uv"], ConfigError, "a==1 "),
    ],
)
def test_installation_failures_are_explained(
    place: Place, failure: str, calls: list[str], kind: type[Exception], words: str
) -> None:
    place.installer.failure = failure
    with pytest.raises(kind, match=words):
        place.add()
    assert place.installer.calls == calls and not (place.venv / "tests").exists() and not place.links()


def test_an_unwritable_environment_is_kept(place: Place) -> None:
    (place.venv.parent / "bootstrap.lock").mkdir()
    with pytest.raises(ConfigError, match="bootstrap.lock"):
        place.add()
    (place.venv.parent / "bootstrap.lock").rmdir()
    (place.venv / "made-of").unlink()
    place.add()
    assert place.installer.calls == []


def test_the_lock_files_agree() -> None:
    users, tests = ((ROOT / name).read_text() for name in ("requirements.lock", suite.LOCK))
    versions = [dict(line.split("==")[:2] for line in pins(text)) for text in (users, tests)]
    assert all(versions[0][name] == version for name, version in versions[1].items() if name in versions[0])
    direct = {line.split("==")[0] for line in pins((ROOT / "requirements-test.in").read_text())}
    assert direct <= set(versions[1])
    # Airflow depends on PyYAML, too.
    assert direct & set(versions[0]) == {"pyyaml"}
    assert all(line.endswith("\\") for line in pins(tests)), "each with its hashes"
    assert bootstrap.lock_entries(bootstrap.added_entries(tests, users), ["pytest"]).startswith("pytest==")


def pins(text: str) -> list[str]:
    return [line for line in text.splitlines() if line[:1].isalnum()]
