"""A night that never was: what an alert on it would say, so that whoever receives alerts can be tried out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from faultline.comparison.gate.nights import as_json
from faultline.comparison.gate.verdict import Paired, Pairs, judge_gate
from faultline.records.manifest import BASELINE, Baseline, Manifest, ManifestCell
from faultline.records.metrics import KNOWN

# How much worse or better a made-up night is, and how its pairs scatter around that.
CHANGE, SCATTER = 0.22, (-0.03, 0.01, 0.02, -0.01, 0.03, -0.02)


def made_up_verdict(kind: str, night: str, configurations: Mapping[str, str], figure: str) -> dict[str, Any] | None:
    """What would be kept of a night in which each configuration (name by id) is so much `worse` or `better`; None of
    one that is `broken`."""
    if kind == "broken":
        return None
    metric = next(one for one in KNOWN if one.key == figure)
    centre = math.log1p(CHANGE) * (1 if kind == "worse" else -1)
    values = tuple(centre + SCATTER[number % len(SCATTER)] for number in range(15))
    cells = tuple(Pairs(one, name, metric, values, values, len(values)) for one, name in configurations.items())
    # Two nights that agree are red.
    verdict = judge_gate([Paired(date, "tonight", "baseline", cells) for date in ("2026-01-01T02:00:00+00:00", night)])
    return as_json(verdict, _plan(night, list(configurations)))


def _plan(night: str, ids: Sequence[str]) -> Manifest:
    told = Baseline(series=f"{night}{BASELINE}", build="baseline", spec={}, primary=dict.fromkeys(ids, ""))
    return Manifest(
        schema=1, sweep_id="made-up", matrix="nightly_regression", run_id="made-up", series=night, build="tonight",
        logical_date=night, planned_at=night, baseline=told,
        cells=tuple(ManifestCell(config={}, config_id=one, repetition=0) for one in ids),
    )  # fmt: skip
