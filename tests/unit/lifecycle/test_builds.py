"""Revisions brought here by git: whole or not at all, never changed, and refused by name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from faultline.experiment.build import BuildSpec
from faultline.lifecycle import builds as subject
from faultline.lifecycle.builds import build_of
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings


def git(root: Path, *words: str) -> str:
    named = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(root), *named, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A checkout with two revisions of one program, and a first one without any."""
    root = tmp_path / "checkout"
    (root / "spark_jobs" / "nexmark").mkdir(parents=True)
    git(root, "init", "-q")
    git(root, "commit", "-q", "--allow-empty", "-m", "empty")
    git(root, "tag", "v0")
    for version in ("v1", "v2"):
        (root / "spark_jobs" / "a.py").write_text(f"print('{version}')\n")
        (root / "spark_jobs" / "nexmark" / "ü.sql").write_text(version)
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", version)
        git(root, "tag", version)
    return Settings(root, tmp_path / "home", tmp_path / "results")


def test_a_revisions_programs_are_brought_once_and_stay_as_they_are(settings: Settings) -> None:
    build = build_of(BuildSpec("v1"), settings, key="baseline")
    commit = git(settings.root, "rev-parse", "v1")
    assert (build.commit, build.programs) == (commit, settings.home / "builds" / commit[:12] / "spark_jobs")
    assert (build.programs / "a.py").read_text() == "print('v1')\n"
    assert (build.programs / "nexmark" / "ü.sql").read_text() == "v1"
    before = (build.programs / "a.py").stat().st_mtime_ns
    assert build_of(BuildSpec(commit[:8]), settings, key="baseline").programs == build.programs
    assert (build.programs / "a.py").stat().st_mtime_ns == before
    assert [path.name for path in (settings.home / "builds").iterdir()] == [commit[:12]], "nothing half made is left"
    (settings.root / "spark_jobs" / "a.py").write_text("changed")
    assert (build_of(BuildSpec("HEAD"), settings, key="x").programs / "a.py").read_text() == "print('v2')\n"
    assert build.as_environment() == {"revision": "v1", "settings": {}, "commit": commit}
    installed = build_of(BuildSpec(), settings, key="x")
    assert installed.programs == settings.root / "spark_jobs" and installed.as_environment() is None


def test_what_cannot_be_brought_is_refused_by_name(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="^baseline.revision: git knows no 'v9' in this checkout"):
        build_of(BuildSpec("v9"), settings, key="baseline")
    with pytest.raises(ConfigError, match="^baseline.revision: v0 has no spark_jobs/"):
        build_of(BuildSpec("v0"), settings, key="baseline")
    build = build_of(BuildSpec("v1"), settings, key="baseline")
    (build.programs / "a.py").write_text("tampered")
    with pytest.raises(ConfigError, match="a.py is not what v1 has; delete .*builds"):
        build_of(BuildSpec("v1"), settings, key="baseline")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="^baseline.revision: there is no git here"):
        build_of(BuildSpec("v1"), settings, key="baseline")


def test_a_failed_archive_leaves_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = subject._git

    def broken(root: Path, where: str, arguments: list[str]) -> bytes | None:
        return None if arguments[0] == "archive" else asked(root, where, arguments)

    monkeypatch.setattr(subject, "_git", broken)
    with pytest.raises(ConfigError, match="git could not read spark_jobs/"):
        build_of(BuildSpec("v1"), settings, key="baseline")
    assert not (settings.home / "builds").exists()
