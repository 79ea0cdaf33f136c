"""The Debian packages whose programs the tests use, and where such programs lie."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# Program: package.
PACKAGES = {
    "chromium": "chromium",
    "sshd": "openssh-server",
    "initdb": "postgresql",
    "memcached": "memcached",
    "nft": "nftables",
}
# Of tests that run with --thorough only.
THOROUGH = {
    "podman": "podman", "runc": "runc", "buildah": "buildah", "catatonit": "catatonit", "debootstrap": "debootstrap",
}  # fmt: skip
# Where Debian puts programs that an ordinary user's PATH does not reach. Of several versions the newest is taken.
PLACES = ("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/lib/postgresql/*/bin")
INSTALL = "apt-get install -y --no-install-recommends"


def find_program(name: str) -> str | None:
    """Its path, if it is there; Debian's own comes first, since the programs that belong to it lie beside it."""
    folders: list[str] = []
    for place in PLACES:
        path = Path(place)
        found = [str(one) for one in Path(path.anchor).glob(str(path.relative_to(path.anchor)))]
        folders += sorted(found, key=lambda one: [int(part) for part in one.split("/") if part.isdigit()], reverse=True)
    return shutil.which(name, path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))


def package_of(program: str) -> str:
    """The package that brings a program."""
    return {**PACKAGES, **THOROUGH}[program]


def install_missing(log: Path, say: Callable[[str], None], *, thorough: bool = False) -> None:
    """Installs what the tests lack, where that is possible, else says so in one line. Never raises: they skip.

    `thorough`: also what only the thorough ones need.
    """
    wanted = {**PACKAGES, **(THOROUGH if thorough else {})}
    packages = _missing(wanted)
    if not packages:
        return
    command = f"{INSTALL} {' '.join(packages)}"
    if not shutil.which("apt-get"):
        say(f"no apt-get here: tests are skipped that need the programs of Debian's {', '.join(packages)}")
    elif os.geteuid() != 0:
        say(f"tests that need {', '.join(packages)} are skipped, since only root can install; run: sudo {command}")
    else:
        say(f"installing Debian packages for the tests: {', '.join(packages)}")
        # The lists may be stale or absent; they are fetched only when the first try fails.
        if not (_run(command, log) or (_run("apt-get update", log) and _run(command, log))) or _missing(wanted):
            say(f"tests that need {', '.join(_missing(wanted))} are skipped, since that failed; see {log}")


def _missing(wanted: Mapping[str, str]) -> Sequence[str]:
    return [package for name, package in wanted.items() if find_program(name) is None]


def _run(command: str, log: Path) -> bool:
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
