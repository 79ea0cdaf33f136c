"""Copy of the sources with added toy modules, and programs that run on it in a subprocess."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from faultline.system.settings import ROOT

TOYS = ROOT / "tests" / "unit" / "toys"
SOURCES = ("include", "generators", "fault", "spark_jobs", "scripts")


@dataclass(frozen=True)
class Tree:
    """A copy of the sources. `added`: file name of a toy module, by path in the copy."""

    root: Path
    added: Mapping[str, str]

    @classmethod
    def at(cls, root: Path, added: Mapping[str, str]) -> Tree:
        for folder in SOURCES:
            shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for target, toy in added.items():
            (root / target).parent.mkdir(exist_ok=True)
            shutil.copy(TOYS / toy, root / target)
        return cls(root, added)

    def ask(self, question: str, *arguments: object) -> list[str]:
        """Run a program with this tree on the import path; return its output lines."""
        path = f"{self.root / 'include'}{os.pathsep}{self.root}"
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-P", "-c", question, *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip().splitlines()

    def changed(self, other: Path, change: tuple[str, str]) -> Tree:
        """Return another copy, with the text `change[0]` of the first toy replaced by `change[1]`."""
        shutil.copytree(self.root, other)
        file = other / next(iter(self.added))
        assert change[0] in file.read_text()
        file.write_text(file.read_text().replace(*change))
        return Tree(other, self.added)

    def check_differences(self) -> None:
        """Check that only the added files differ from the sources of the project."""
        before, after = _files(ROOT), _files(self.root)
        differ = {name for name in after if before.get(name) != after[name]}
        assert {name for name in differ if after[name] or not name.endswith("/__init__.py")} == set(self.added)


def _files(root: Path) -> dict[str, bytes]:
    found = (path for folder in SOURCES for path in (root / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in found if "__pycache__" not in path.parts}
