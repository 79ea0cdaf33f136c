"""What presets of several matrices have in common."""

from __future__ import annotations

from typing import Any

# The preset that is made for what the papers claim.
FINDINGS = "findings"
# One short cell without a fault. Its interval is one that two cores hold while the JVMs still compile.
SHORT: dict[str, Any] = {"warmup_s": 5.0, "duration_s": 12.0, "rate": 100.0, "fault": "none"}
# What a comparison needs to see half of what there is; windows are as long as each cell's interval needs.
REPEATED: dict[str, Any] = {"repetitions": 5}
