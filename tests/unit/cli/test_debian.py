"""Debian packages for the tests: silence when none is missing, never an error, one line of skips. apt-get is a fake."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from faultline.system.settings import ROOT
from tests import run as debian
from tests.support.needs import needed


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH, with every program but chromium."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(debian, "PLACES", ())
    monkeypatch.setattr("tests.run.os.geteuid", lambda: 0)
    for name in set(debian.PACKAGES) - {"chromium"}:
        fake(folder, name)
    return folder


def fake(folder: Path, name: str, body: str = "") -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def install(tmp_path: Path) -> list[str]:
    said: list[str] = []
    debian.install_missing(tmp_path / "logs" / "debian.log", said.append)
    return said


def test_nothing_missing_nothing_said(programs: Path, tmp_path: Path) -> None:
    fake(programs, "chromium")
    fake(programs, "apt-get", f"touch {tmp_path}/called")
    assert install(tmp_path) == [] and not (tmp_path / "called").exists()


def test_what_is_missing_is_installed(programs: Path, tmp_path: Path) -> None:
    there = f"echo '#!/bin/sh' >{programs}/chromium; /bin/chmod +x {programs}/chromium"
    fake(programs, "apt-get", f'echo "$DEBIAN_FRONTEND $*" >>{tmp_path}/called; {there}')
    assert install(tmp_path) == ["installing Debian packages for the tests: chromium"]
    assert (tmp_path / "called").read_text() == "noninteractive install -y --no-install-recommends chromium\n"


def test_what_only_thorough_tests_need_is_installed_for_them_only(programs: Path, tmp_path: Path) -> None:
    fake(programs, "chromium")
    there = "; ".join(f"echo >{programs}/{name}; /bin/chmod +x {programs}/{name}" for name in debian.THOROUGH)
    fake(programs, "apt-get", f'echo "$*" >>{tmp_path}/called; {there}')
    assert install(tmp_path) == []
    said: list[str] = []
    debian.install_missing(tmp_path / "logs" / "debian.log", said.append, thorough=True)
    assert len(said) == 1 and "podman" in said[0] and "runc" in (tmp_path / "called").read_text()


def test_the_lists_are_fetched_only_after_a_first_try(programs: Path, tmp_path: Path) -> None:
    fake(
        programs,
        "apt-get",
        f"echo $1 >>{tmp_path}/called; [ $1 = update ] && echo >{tmp_path}/lists; [ -f {tmp_path}/lists ]",
    )
    said = install(tmp_path)
    assert (tmp_path / "called").read_text().split() == ["install", "update", "install"]
    # It claimed to succeed, and the program is not there all the same.
    assert said[1].startswith("tests that need chromium are skipped")


@pytest.mark.parametrize(
    ("user", "apt", "words"),
    [
        (0, "echo no network; exit 100", "tests that need chromium are skipped, since that failed; see "),
        (1000, "exit 100", "run: sudo apt-get install -y --no-install-recommends chromium"),
        (0, None, "no apt-get here: tests are skipped that need the programs of Debian's chromium"),
    ],
)
def test_what_cannot_be_installed_is_said_in_one_line(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, apt: str | None, words: str
) -> None:
    monkeypatch.setattr("tests.run.os.geteuid", lambda: user)
    if apt:
        fake(programs, "apt-get", apt)
    said = install(tmp_path)
    assert words in said[-1] and not any("\n" in line for line in said)
    if user == 0 and apt:
        assert "no network" in (tmp_path / "logs" / "debian.log").read_text()


def test_an_apt_that_does_not_start_and_a_log_that_cannot_be_written_are_no_errors(
    programs: Path, tmp_path: Path
) -> None:
    (programs / "apt-get").write_bytes(b"\x7fELF")
    (programs / "apt-get").chmod(0o755)
    assert "that failed" in install(tmp_path)[-1]
    (tmp_path / "file").touch()
    said: list[str] = []
    debian.install_missing(tmp_path / "file" / "log", said.append)
    assert "that failed" in said[-1]


def test_programs_beside_path_are_found_and_of_postgresql_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("9", "15", "17"):
        (tmp_path / version / "bin").mkdir(parents=True)
        fake(tmp_path / version / "bin", "initdb")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(debian, "PLACES", ("/no/such", f"{tmp_path}/*/bin"))
    assert debian.find_program("initdb") == f"{tmp_path}/17/bin/initdb"
    assert debian.find_program("sshd") is None


def test_tests_that_need_a_missing_program_are_skipped_in_one_line_for_each_package(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "from tests import run as debian\n"
        "from tests.support.needs import needed, pytest_runtest_makereport\n"
        "debian.PLACES = ()\n"
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
    fake(tmp_path, "initdb")
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'include'}"}
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


def test_what_is_there_is_given(programs: Path) -> None:
    assert needed("sshd") == str(programs / "sshd")
    with pytest.raises(pytest.skip.Exception, match="chromium is missing"):
        needed("chromium")
