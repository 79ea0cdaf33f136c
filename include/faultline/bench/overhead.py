"""The fixed cost of an experiment: its wall time minus its warm-up and measured window."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from faultline.base.text import Say
from faultline.bench.figure import summarise
from faultline.client.operations import bring_up
from faultline.client.run_one import run_single

WARMUP_S, DURATION_S = 5.0, 5.0
PARAMETERS = ("fault=none", f"warmup_s={WARMUP_S:g}", f"duration_s={DURATION_S:g}", "checkpoint_interval_s=1")
# The default experiment's window, against which the share is told.
DEFAULT_WINDOW_S = 75.0


def run(say: Say, quick: bool) -> dict[str, dict[str, Any]]:
    """Runs short controls through the scheduler, 5 of them, or 2 when `quick`. Figures: fixed_s, share.

    `share` is the fixed cost's part of a default experiment's wall time.
    """
    bring_up(say)
    costs = []
    for number in range(2 if quick else 5):
        began = time.monotonic()
        record = run_single("word_count", [*PARAMETERS, f"repetition={number}"], lambda text: None, keep_topics=False)
        costs.append(time.monotonic() - began - WARMUP_S - DURATION_S)
        say(f"experiment {number + 1}: {record.status}, fixed cost {costs[-1]:.1f} s")
    shares = [cost / (cost + DEFAULT_WINDOW_S) for cost in costs]
    return {"fixed_s": asdict(summarise(costs, "s")), "share": asdict(summarise(shares, "1"))}
