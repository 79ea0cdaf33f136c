"""`./faultline test`: Debian packages that tests need, with a simulated apt-get."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from faultline.system.settings import ROOT
from tests import run as suite
from tests.support.needs import needed

# Plugins take longer to load than the tests of a child pytest.
WITHOUT_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


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
