"""How many events a second Nexmark's queries handle, per core and of the whole machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import nexmark_source
from benchmarks.figure import Figure, summarise
from faultline.cli.nexmark_sweep import wanted_of
from faultline.cli.sweeping import run_wanted
from faultline.comparison.findings.nexmark import per_core, per_machine
from faultline.records.record import Record
from faultline.system.errors import InfrastructureError
from faultline.system.settings import load_settings
from faultline.system.text import Say


def run(say: Say, quick: bool) -> dict[str, dict[str, Any]]:
    """All queries through the matrix's preset `default`, or its `smoke` when `quick`.

    Figures: events_per_s_QUERY, events_per_s_per_core_QUERY, events_per_s_per_core_with_driver_QUERY, and of the
    events by themselves source_share_QUERY and source_events_per_s_per_core_READ. What has a valid record of this build
    answers again.
    Raises InfrastructureError when not one query has a valid record.
    """
    records: list[Record] = []
    run_wanted(wanted_of(["preset=smoke"] if quick else []), say, show=records.extend)
    found = figures(records)
    if not found:
        raise InfrastructureError("bench nexmark: nothing valid; see the failed runs in the UI")
    say("nexmark: the events by themselves")
    found |= nexmark_source.figures(nexmark_source.per_core(load_settings(), quick), per_core(records))
    return {name: asdict(figure) for name, figure in found.items()}


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    """The figures by name."""
    kinds = (
        ("events_per_s", "events/s", per_machine(records)),
        ("events_per_s_per_core", "events/s/core", per_core(records)),
        ("events_per_s_per_core_with_driver", "events/s/core", per_core(records, driver=True)),
    )
    return {
        f"{name}_{query}": summarise(values, unit) for name, unit, found in kinds for query, values in found.items()
    }
