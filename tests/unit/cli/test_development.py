"""The packages that only tests need: beside the environment of a user, whole or not at all. The installer is a fake."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from faultline import bootstrap
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import ROOT
from tests import run as development

BOTH = "both==1 \\\n    --hash=sha256:0\n"
ADDED = "other==2 ; b \\\n    --hash=sha256:1\npytest==3 \\\n    --hash=sha256:2\n"
USERS = BOTH + ADDED[: ADDED.index("pytest")].replace("; b", "; a")
TESTS = f"# head\n{BOTH}    # via x\n{ADDED}"


class Installer:
    """Stands in for Environment._run: puts a package where it is told to, and answers with `failure`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failure: str | None = None
        self.calls: list[str] = []
        self.asked = ""
        monkeypatch.setattr(bootstrap.Environment, "_run", lambda _, command: self.run(command))

    def run(self, command: list[str]) -> str | None:
        self.calls.append(Path(command[0]).name)
        assert "--require-hashes" in command and "--no-deps" in command
        self.asked = Path(command[command.index("-r") + 1]).read_text()
        (Path(command[command.index("--target") + 1]) / "pytest").write_text(f"{len(self.calls)}")
        return self.failure


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    (root / "requirements.lock").write_text(USERS)
    (root / development.LOCK).write_text(TESTS)
    return root


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment as the bootstrap leaves it."""
    venv = tmp_path / "home" / "venv"
    (venv / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (venv / "made-of").touch()
    return venv


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch) -> Installer:
    return Installer(monkeypatch)


def links(venv: Path) -> list[str]:
    return [path.read_text() for path in venv.glob("lib/*/site-packages/faultline_tests.pth")]


def test_only_what_the_users_lock_has_not_is_added_and_once(root: Path, venv: Path, installer: Installer) -> None:
    development.add_packages(root, venv)
    development.add_packages(root, venv)
    assert installer.calls == ["uv"] and installer.asked == ADDED
    assert (venv / "tests" / "pytest").read_text() == "1"
    assert links(venv) == [f"{venv}/tests\n"]
    assert not (venv / "tests.part").exists()


@pytest.mark.parametrize("change", ["lock", "users lock", "folder", "link", "nothing"])
def test_a_change_brings_the_installer_back(root: Path, venv: Path, installer: Installer, change: str) -> None:
    development.add_packages(root, venv)
    (venv / "tests" / "of before").touch()
    if change == "lock":
        (root / development.LOCK).write_text(TESTS.replace("pytest==3", "pytest==4"))
    elif change == "users lock":
        (root / "requirements.lock").write_text(USERS.replace("both==1", "both==2"))
    elif change == "folder":
        shutil.rmtree(venv / "tests")
    elif change == "link":
        (venv / "lib" / "python3.11" / "site-packages" / "faultline_tests.pth").unlink()
    development.add_packages(root, venv)
    assert len(installer.calls) == (1 if change == "nothing" else 2)
    assert (venv / "tests" / "of before").exists() == (change == "nothing"), "a package of before is gone"


def test_what_is_interrupted_is_made_anew_and_what_was_there_stays(
    root: Path, venv: Path, installer: Installer, monkeypatch: pytest.MonkeyPatch
) -> None:
    development.add_packages(root, venv)
    (root / development.LOCK).write_text(TESTS.replace("pytest==3", "pytest==4"))

    def interrupted(command: list[str]) -> None:
        installer_run(command)
        raise KeyboardInterrupt

    installer_run = installer.run
    monkeypatch.setattr(installer, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        development.add_packages(root, venv)
    assert (venv / "tests" / "pytest").read_text() == "1"
    (venv / "tests.part" / "half").touch()
    monkeypatch.setattr(installer, "run", installer_run)
    development.add_packages(root, venv)
    assert (venv / "tests" / "pytest").read_text() == "3" and not (venv / "tests" / "half").exists()


@pytest.mark.parametrize(
    ("failure", "calls", "kind", "words"),
    [
        ("dns error", ["uv", "python"], InfrastructureError, "then run `./faultline test` again"),
        ("Hash mismatch for `a==1`", ["uv"], ConfigError, "a==1 is not what requirements-test.lock promises"),
    ],
)
def test_failures_are_explained(
    root: Path, venv: Path, installer: Installer, failure: str, calls: list[str], kind: type[Exception], words: str
) -> None:
    installer.failure = failure
    with pytest.raises(kind, match=words):
        development.add_packages(root, venv)
    assert installer.calls == calls and not (venv / "tests").exists() and not links(venv)


def test_a_place_that_cannot_be_written_is_one_line(root: Path, venv: Path, installer: Installer) -> None:
    (venv.parent / "bootstrap.lock").mkdir()
    with pytest.raises(ConfigError, match="bootstrap.lock"):
        development.add_packages(root, venv)


def test_an_environment_of_somebody_else_is_left_alone(root: Path, venv: Path, installer: Installer) -> None:
    (venv / "made-of").unlink()
    development.add_packages(root, venv)
    assert installer.calls == []


def test_the_locks_agree_and_the_users_holds_nothing_of_the_tests() -> None:
    users, tests = ((ROOT / name).read_text() for name in ("requirements.lock", development.LOCK))
    versions = [dict(line.split("==")[:2] for line in pins(text)) for text in (users, tests)]
    assert all(versions[0][name] == version for name, version in versions[1].items() if name in versions[0])
    direct = {line.split("==")[0] for line in pins((ROOT / "requirements-test.in").read_text())}
    assert direct <= set(versions[1])
    # PyYAML is Airflow's, too.
    assert direct & set(versions[0]) == {"pyyaml"}
    assert all(line.endswith("\\") for line in pins(tests)), "each with its hashes"
    assert bootstrap.entries(bootstrap.added(tests, users), ["pytest"]).startswith("pytest==")


def pins(text: str) -> list[str]:
    return [line for line in text.splitlines() if line[:1].isalnum()]
