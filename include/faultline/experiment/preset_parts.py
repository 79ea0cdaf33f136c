"""What presets of several matrices have in common."""

from __future__ import annotations

from typing import Any

# The preset that is made for what the papers claim.
FINDINGS = "findings"
# One short cell without a fault. Its interval is one that two cores hold while the JVMs still compile.
SHORT: dict[str, Any] = {"warmup_s": 5.0, "duration_s": 12.0, "rate": 100.0, "fault": "none"}
# What a comparison needs to see half of what there is; windows are as long as each cell's interval needs.
REPEATED: dict[str, Any] = {"repetitions": 5}
# The preset of `./faultline demo`: the runs of each interval, injections of each run, and measurements of a cell until
# its unsound record is kept. Three runs are the least from which a step along an axis can be claimed.
DEMO, DEMO_RUNS, DEMO_INJECTIONS, DEMO_MEASUREMENTS = "demo", 3, 2, 2
DEMO_VALUES: dict[str, Any] = {
    "state_mb": [1.0],
    "checkpoint_interval_s": [2.0, 5.0],
    "fault": ["executor"],
    "repetitions": DEMO_RUNS,
    "injections": DEMO_INJECTIONS,
}
