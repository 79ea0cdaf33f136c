"""Acts on the host that this runs on, asked as the agent of another one is (`fault.remote`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fault.errors import NobodyStandsBy
from fault.host_acts import answer

# Posting takes a tenth of a second.
WITHIN_S = 30.0
_ROOT = Path(__file__).resolve().parents[1]
_POST = """
import json, sys
sys.path.insert(0, sys.argv[1])
from fault.host_acts import answer
answer(**json.load(sys.stdin))
"""


class ThisHost:
    """The host of the driver, of which nothing but a disk of the run's own is anybody's to take."""

    def host_act(self, do: str, *, kind: str, name: str, asked: Mapping[str, Any], seconds: float = 0.0) -> Any:
        """As `RemoteInjector.host_act`. Raises ActRefused, or NobodyStandsBy."""
        if do != "undo_later":
            return answer(do, kind, name, asked, seconds)
        told = {"do": do, "kind": kind, "name": name, "asked": dict(asked), "seconds": seconds}
        # A program of his own, with nothing of whoever posts him: he outlives the end of all that bears a run's marks.
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _POST, str(_ROOT)],
            input=json.dumps(told),
            env={"PATH": os.environ.get("PATH", os.defpath)},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        if done.returncode:
            why = (done.stderr.splitlines() or ["failed"])[-1]
            raise NobodyStandsBy(f"{kind}: nobody could be posted who undoes it ({why})")
        return None
