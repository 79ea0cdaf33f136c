"""Workload programs of a build under test: those of the checkout, or of a git revision.

A revision's programs are written once to `<home>/builds/<commit>/`, atomically, and never changed. Each use compares
the files with git's hashes.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline.engines.registry import ENGINES, engine_of
from faultline.experiment.build import COMMIT_DIGITS, BuildSpec
from faultline.experiment.config import Configuration
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings

# Programs of the default engine, in the checkout.
PROGRAMS = str(ENGINES.default.programs)
GIT_S = 60.0


@dataclass(frozen=True)
class Build:
    """Runnable build: `programs` is the folder of its programs, `commit` the commit of its revision."""

    spec: BuildSpec
    programs: Path
    commit: str | None = None

    def as_environment(self) -> dict[str, Any] | None:
        """Return the record's description of the build; None for the installed one."""
        return None if self.spec.installed else {**self.spec.as_mapping(), "commit": self.commit}


def build_of(spec: BuildSpec, settings: Settings, *, key: str) -> Build:
    """Return the build with its programs in place.

    `key`: the form field that errors start with. Raises ConfigError if git is missing, the revision is unknown, or it
    has no workload programs.
    """
    if spec.revision is None:
        return Build(spec, settings.root / PROGRAMS)
    field = f"{key}.revision"
    digits = commit_of(spec.revision, settings, key=key)
    listed = _git(settings.root, field, ["ls-tree", "-r", "-z", digits, "--", f"{PROGRAMS}/"]) or b""
    blobs = {path: blob for path, blob in map(_parse_blob, filter(None, listed.split(b"\0")))}
    if not blobs:
        raise ConfigError(
            f"{field}: got {spec.revision} without {PROGRAMS}/; expected a revision that has workload programs"
        )
    folder = settings.home / "builds" / digits[:COMMIT_DIGITS]
    if not folder.exists():
        _extract(settings.root, field, digits, folder)
    changed = [path for path, blob in blobs.items() if _blob_hash(folder / path) != blob]
    if changed:
        raise ConfigError(f"{field}: {folder / changed[0]} differs from {spec.revision}; fix: delete {folder}")
    return Build(spec, folder / PROGRAMS, digits)


def commit_of(revision: str, settings: Settings, *, key: str) -> str:
    """Return the commit of a revision.

    Raises ConfigError if the revision is unknown or git is missing.
    """
    field = f"{key}.revision"
    commit = _git(settings.root, field, ["rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"])
    if commit is None:
        raise ConfigError(f"{field}: got {revision!r}; expected a revision of this checkout; fix: fetch it")
    return commit.decode().strip()


def check_build(spec: BuildSpec, config: Configuration, *, key: str) -> None:
    """Raise ConfigError for a build that the configuration's engine cannot run."""
    if not spec.installed:
        engine_of(config).check_build(spec, config, key)


def check_builds(spec: BuildSpec, configurations: Iterable[Configuration], *, key: str) -> None:
    """Raise ConfigError for a build that one of the configurations cannot run."""
    for config in configurations:
        check_build(spec, config, key=key)


def _extract(root: Path, field: str, commit: str, folder: Path) -> None:
    """Write the revision's programs atomically; another process may do the same concurrently."""
    archive = _git(root, field, ["archive", "--format=tar", commit, "--", PROGRAMS])
    if archive is None:
        raise ConfigError(
            f"{field}: git archive failed for {PROGRAMS}/ of {commit[:COMMIT_DIGITS]}; fix: check the checkout"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(temporary, filter="data")
        os.chmod(temporary, 0o755)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _git(root: Path, field: str, arguments: list[str]) -> bytes | None:
    """Return git's output; None if it exits with an error.

    Raises ConfigError if git is missing or times out.
    """
    try:
        finished = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, timeout=GIT_S, check=False
        )  # fmt: skip
    except OSError:
        raise ConfigError(f"{field}: git not found; fix: install git or omit the revision") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{field}: git timed out after {GIT_S:g} s; fix: check the checkout") from None
    return finished.stdout if finished.returncode == 0 else None


def _parse_blob(line: bytes) -> tuple[str, str]:
    """Return path and hash from a line of `git ls-tree`."""
    about, _, path = line.partition(b"\t")
    return path.decode(), about.split()[2].decode()


def _blob_hash(path: Path) -> str | None:
    """Return the git blob hash of a file; None if it is missing."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
