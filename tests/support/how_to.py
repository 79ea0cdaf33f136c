"""Parser of the how-tos in docs/: their commands and files."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from faultline.system.settings import ROOT

FOLDER = ROOT / "docs" / "how-to"
NAMES = sorted(path.stem for path in FOLDER.glob("*.md"))


@dataclass(frozen=True)
class HowTo:
    """One page. `commands`: the arguments of each `$ ./faultline …`, in order; `files`: its YAML blocks."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    files: tuple[str, ...]

    @classmethod
    def read(cls, name: str) -> HowTo:
        """Return the page of this name."""
        text = (FOLDER / f"{name}.md").read_text()
        # Commands may continue on the next line.
        consoles = re.sub(r"\\\n\s*", "", "".join(re.findall(r"(?ms)^```console\n(.*?)^```", text)))
        commands = (shlex.split(line, comments=True) for line in re.findall(r"(?m)^\$ \./faultline (.+)$", consoles))
        return cls(name, tuple(map(tuple, commands)), tuple(re.findall(r"(?ms)^```yaml\n(.*?)^```", text)))
