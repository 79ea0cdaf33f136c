"""The programs of a host by which something is done to it, and what they say."""

from __future__ import annotations

import os
import shutil
import subprocess

from fault.errors import ActRefused

# Beyond PATH: where Debian puts programs for root.
PLACES = ("/usr/sbin", "/sbin", "/usr/local/sbin")
WITHIN_S = 30.0


def require(program: str, package: str) -> None:
    """Raises ActRefused, naming the package, where there is no such program."""
    if found(program) is None:
        raise ActRefused(f"{program}: not on this host; install it (Debian: apt-get install {package})")


def found(program: str) -> str | None:
    """Its path, also where only root's PATH reaches."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *PLACES]))


def run(program: str, *words: str, told: str = "") -> str:
    """What a program says. Raises ActRefused with its own words when it fails, or is not over within `WITHIN_S`."""
    path = found(program)
    if path is None:
        raise ActRefused(f"{program}: not on this host")
    try:
        done = subprocess.run([path, *words], input=told, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        raise ActRefused(f"{program} {' '.join(words)}: not over within {WITHIN_S:g} s") from None
    if done.returncode:
        raise ActRefused(f"{program} {' '.join(words)}: {' '.join(done.stderr.split()) or 'failed'}")
    return done.stdout
