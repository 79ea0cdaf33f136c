"""What only the tests need: the packages of requirements-test.lock, kept apart from a user's installation.

They lie in a folder of their own inside the environment, `venv/tests`, which is made elsewhere and put in place whole:
an installation that broke off changes nothing, a changed lock leaves no package of before, and what a user runs is
never written to. What both locks hold is installed once, by the bootstrap.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from faultline import bootstrap
from faultline.system.errors import ConfigError

LOCK = "requirements-test.lock"


def add_packages(root: Path, venv: Path) -> None:
    """Brings `venv/tests` to what the locks say; does nothing when it is so. Raises FaultlineError."""
    if not (venv / "made-of").exists():
        return  # an environment that somebody else made, and looks after
    wanted = bootstrap.added((root / LOCK).read_text(), (root / "requirements.lock").read_text())
    if _ready(venv, wanted):
        return
    try:
        with bootstrap.alone(venv.parent) as lock:
            if not _ready(venv, wanted):  # another caller may have done it while this one waited
                _make(bootstrap.Environment(root, venv.parent, lock, LOCK, "./faultline test"), wanted)
    except OSError as error:
        raise ConfigError(bootstrap.explain_os_error(error, venv)) from error


def _ready(venv: Path, wanted: str) -> bool:
    """The copy of what was asked for is written last, and moves with the folder."""
    try:
        return (venv / "tests" / "made-of").read_text() == wanted and any(_links(venv))
    except OSError:
        return False


def _make(environment: bootstrap.Environment, wanted: str) -> None:
    folder = environment.venv / "tests"
    part = environment.venv / "tests.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    asked = part / "made-of.part"
    asked.write_text(wanted)
    bootstrap.say(f"adding the packages of {LOCK} to the environment (once; 0.3 GB)")
    environment.install(asked, "--target", str(part))
    asked.rename(part / "made-of")
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    # A .pth file, so that every Python of the environment finds them, after everything else.
    for packages in environment.venv.glob("lib/python3.*/site-packages"):
        bootstrap.write(packages / "faultline_tests.pth", f"{folder}\n")


def _links(venv: Path) -> list[Path]:
    return list(venv.glob("lib/python3.*/site-packages/faultline_tests.pth"))
