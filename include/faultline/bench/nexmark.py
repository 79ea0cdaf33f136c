"""Events per second and core of Nexmark's queries, and how they stand to Flink's on two cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from faultline.base.errors import InfrastructureError
from faultline.base.settings import load_settings
from faultline.bench import nexmark_source
from faultline.bench.figure import Figure, summarise
from faultline.client.nexmark_sweep import run_all
from faultline.comparison.findings.nexmark import per_core, ratios
from faultline.records.record import Record

Say = Callable[[str], None]


def run(say: Say, quick: bool) -> dict[str, dict[str, Any]]:
    """All queries through the matrix's preset `default`, or its `smoke` when `quick`.

    Figures: ratio_QUERY, events_per_s_per_core_QUERY, and of the events by themselves source_share_QUERY and
    source_events_per_s_per_core_READ. What has a valid record of this build answers again.
    Raises InfrastructureError when not one query has a valid record.
    """
    records, _ = run_all(["preset=smoke"] if quick else [], say)
    found = figures(records, quick)
    if not found:
        raise InfrastructureError("bench nexmark: nothing valid; see the failed runs in the UI")
    say("nexmark: the events by themselves")
    queries = {query: [value * 1000 for value in values] for query, values in per_core(records).items()}
    found |= nexmark_source.figures(nexmark_source.per_core(load_settings(), quick), queries)
    return {name: asdict(figure) for name, figure in found.items()}


def figures(records: Sequence[Record], quick: bool = False) -> dict[str, Figure]:
    """The figures by name; a query that is not in Flink's list has no ratio."""
    found = {
        f"events_per_s_per_core_{query}": summarise([value * 1000 for value in values], "events/s/core")
        for query, values in per_core(records).items()
    }
    # Batches of the quick preset are too small to be held against anything.
    if quick:
        return found
    return found | {f"ratio_{query}": summarise(values, "1") for query, values in ratios(records).items()}
