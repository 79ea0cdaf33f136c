"""`./faultline test`: Python packages of the tests, with a simulated installer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from faultline import bootstrap
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import ROOT
from tests import run as suite

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
