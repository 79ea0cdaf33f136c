"""Where the programs of a build under test lie: those of the checkout, or of a revision, brought here by git.

A revision's programs are written once to `<home>/builds/<commit>/`, under another name until it is whole, and never
changed. Its files are held against what git says of them each time that they are asked for.
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

# The folder of the checkout that holds them: a build is of the engine that runs what no other has for itself.
PROGRAMS = str(ENGINES.default.programs)
GIT_S = 60.0


@dataclass(frozen=True)
class Build:
    """A build that can be run: `programs` is the folder of its programs, `commit` that of its revision."""

    spec: BuildSpec
    programs: Path
    commit: str | None = None

    def as_environment(self) -> dict[str, Any] | None:
        """What a record says of it; None for what is installed."""
        return None if self.spec.installed else {**self.spec.as_mapping(), "commit": self.commit}


def build_of(spec: BuildSpec, settings: Settings, *, key: str) -> Build:
    """The build with its programs in place. `key`: the form's field, which errors begin with.

    Raises ConfigError for a revision that git does not know, or that has no workload programs, and without git.
    """
    if spec.revision is None:
        return Build(spec, settings.root / PROGRAMS)
    where = f"{key}.revision"
    digits = commit_of(spec.revision, settings, key=key)
    listed = _git(settings.root, where, ["ls-tree", "-r", "-z", digits, "--", f"{PROGRAMS}/"]) or b""
    blobs = {path: blob for path, blob in map(_parse_blob, filter(None, listed.split(b"\0")))}
    if not blobs:
        raise ConfigError(f"{where}: {spec.revision} has no {PROGRAMS}/; name a revision that has workload programs")
    folder = settings.home / "builds" / digits[:COMMIT_DIGITS]
    if not folder.exists():
        _extract(settings.root, where, digits, folder)
    changed = [path for path, blob in blobs.items() if _blob_hash(folder / path) != blob]
    if changed:
        raise ConfigError(f"{where}: {folder / changed[0]} is not what {spec.revision} has; delete {folder}")
    return Build(spec, folder / PROGRAMS, digits)


def commit_of(revision: str, settings: Settings, *, key: str) -> str:
    """The commit that git takes a revision for. Raises ConfigError for one that it does not know, and without git."""
    where = f"{key}.revision"
    commit = _git(settings.root, where, ["rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"])
    if commit is None:
        raise ConfigError(f"{where}: git knows no {revision!r} in this checkout; fetch it, or name another")
    return commit.decode().strip()


def check_build(spec: BuildSpec, config: Configuration, *, key: str) -> None:
    """Raises ConfigError for a build that the configuration cannot run, as its engine says."""
    if not spec.installed:
        engine_of(config).check_build(spec, config, key)


def check_builds(spec: BuildSpec, configurations: Iterable[Configuration], *, key: str) -> None:
    """The same for several."""
    for config in configurations:
        check_build(spec, config, key=key)


def _extract(root: Path, where: str, commit: str, folder: Path) -> None:
    """Writes the revision's programs, whole or not at all; another process may be at it, too."""
    archive = _git(root, where, ["archive", "--format=tar", commit, "--", PROGRAMS])
    if archive is None:
        raise ConfigError(f"{where}: git could not read {PROGRAMS}/ of {commit[:COMMIT_DIGITS]}; look at the checkout")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(made, filter="data")
        os.chmod(made, 0o755)
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _git(root: Path, where: str, arguments: list[str]) -> bytes | None:
    """What git prints; None when it refuses. Raises ConfigError where there is no git, or it does not answer."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, timeout=GIT_S, check=False
        )  # fmt: skip
    except OSError:
        raise ConfigError(
            f"{where}: there is no git here, which brings a revision; install it, or leave it out"
        ) from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{where}: git did not answer within {GIT_S:g} s; look at the checkout") from None
    return done.stdout if done.returncode == 0 else None


def _parse_blob(line: bytes) -> tuple[str, str]:
    """Path and hash in a line of `git ls-tree`."""
    about, _, path = line.partition(b"\t")
    return path.decode(), about.split()[2].decode()


def _blob_hash(path: Path) -> str | None:
    """A file's hash as git has it; None for one that is not there."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
