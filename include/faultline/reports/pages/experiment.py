"""One experiment: its figures, curves, timeline with sources, audit, configuration and environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from pydantic import ValidationError

from faultline.records.format import NONE, count, plain, seconds, share, signed, window_of
from faultline.records.record import Record
from faultline.records.summary import Entry
from faultline.reports.experiment_view import Pairs, as_text, minute, section_of
from faultline.reports.explain import again
from faultline.reports.narrative import FaultStory, Happening, Story, tell
from faultline.reports.pages.overlay import options_beside
from faultline.reports.pages.runs import runs_of_entry
from faultline.reports.pages.site import Site, Unknown, attempts, render
from faultline.reports.table import load_of
from faultline.system.errors import FaultlineError

# Raw files are other programs' work, and a page must survive whatever stands in them.
_BROKEN = (
    FaultlineError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError,
)  # fmt: skip


def experiment_page(site: Site, attempt: str) -> str:
    """The page of one attempt. Raises Unknown when there is no such record, or it cannot be read."""
    site.index.refresh()
    entry = site.index.of_attempt(attempt)
    if entry is None:
        problem = site.index.problem_of(attempt)
        raise Unknown(f"The record of {attempt} cannot be read: {problem}" if problem else f"No attempt {attempt}.")
    record = _read(site.index.directory / entry.path)
    figures: dict[str, go.Figure] = {}
    section = section_of("", record, site.results, figures)
    story = _story(record, site.results)
    siblings = [
        other
        for other in (site.index.of_sweep(entry.sweep_id) if entry.sweep_id else [])
        if other.config_id == entry.config_id and other.attempt != entry.attempt
    ]
    return render(
        site,
        "experiment",
        title=section["name"],
        entry=entry,
        section=section,
        figures=figures,
        facts=_facts(record, entry),
        runs=[(run, site.run_link(run)) for run in runs_of_entry(site, entry)],
        siblings=attempts(site, siblings) if siblings else None,
        beside=options_beside(site, entry),
        **story,
        again=_again(record),
    )


def _read(path: Path) -> Record:
    """The whole record of a file that the index knows."""
    try:
        return Record.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        raise Unknown(f"The record {path.name} has just been moved or changed; load the page again.") from None


def _story(record: Record, results: Path) -> dict[str, Any]:
    """The story as the template shows it, or why it cannot be told."""
    try:
        story = tell(record, results)
        return {
            "edges": [_event(event) for event in story.edges],
            "faults": [_fault(fault) for fault in story.faults],
            "restarts": [_restart(story, number) for number in range(len(story.restarts))],
            "remarks": list(story.remarks),
        }
    except _BROKEN as error:
        why = f"The raw files cannot be read ({type(error).__name__}: {error}); only the record is shown."
        return {"edges": [], "faults": [], "restarts": [], "remarks": [why]}


def _again(record: Record) -> str:
    try:
        return again(record)
    except _BROKEN:
        return ""


def _facts(record: Record, entry: Entry) -> Pairs:
    """Which cell it is, and where it was measured."""
    environment = record.environment
    memory = "" if environment.memory_mb is None else f", {environment.memory_mb / 1024:.0f} GB"
    clocks = ", ".join(
        f"{host} {signed(one.offset_s * 1000, 1)} ms (asked in {one.round_trip_s * 1000:.1f} ms)"
        for host, one in (environment.clock_offsets or {}).items()
    )
    facts = [
        ("Workload", _load(record)),
        ("Measured", f"{minute(record.measured_at)} UTC"),
        ("Configuration", record.config_id),
        ("Repetition", str(record.repetition)),
        ("Build", record.build),
        ("Series", record.series if record.series != record.build else ""),
        ("Logical date", record.logical_date or ""),
        ("Machine", f"{environment.host or 'unknown host'}: {environment.cores or 'unknown'} cores{memory}"),
        (
            "Oversubscribed",
            "yes: the executors ask for more cores than there are" if environment.oversubscribed else "",
        ),
        ("Faultline", as_text((environment.versions or {}).get("faultline", NONE))),
        ("Commit", environment.git_commit or ""),
        ("Clocks ahead", clocks),
        ("Record", f"records/{entry.path}"),
    ]
    return [(name, value) for name, value in facts if value]


def _load(record: Record) -> str:
    """The workload and what it was fed; older records may lack a part."""
    return ", ".join([*load_of(record.config), f"measured for {plain(window_of(record)[1])} s"])


def _event(event: Happening) -> dict[str, str]:
    plain = event.name.partition("#")[0]
    lettered = len(plain) == 2 and plain[0] == "t" and plain[1].isdigit()
    return {
        "name": plain if lettered else "",
        "words": event.words,
        "after_gate": NONE if event.after_gate_s is None else seconds(event.after_gate_s, 3),
        "after_fault": NONE if event.after_fault_s is None else signed(event.after_fault_s),
        "source": event.source,
    }


def _fault(fault: FaultStory) -> dict[str, Any]:
    """One fault as the template shows it; bars in percent of the whole."""
    whole = max((span.start_s + span.length_s for span in fault.spans), default=0.0) or 1.0
    return {
        "number": fault.number,
        "what": fault.what,
        "verdict": fault.verdict[:1].upper() + fault.verdict[1:],
        "censored": fault.recovery.get("recovered") is False,
        "deed": _deed(fault),
        "spans": [
            {
                "name": span.name,
                "length": f"{seconds(span.length_s, 2)} s",
                "left": f"{100 * span.start_s / whole:.2f}",
                "width": f"{100 * span.length_s / whole:.2f}",
                "seen": span.seen,
            }
            for span in fault.spans
        ],
        "events": [_event(event) for event in fault.events],
    }


def _deed(fault: FaultStory) -> Pairs:
    """What was done, how it went, and how deep it cut."""
    deed, recovery = fault.deed, fault.recovery
    pairs: list[tuple[str, str | None]] = []
    if deed is not None:
        late = "" if deed.late_ms is None else f", {signed(deed.late_ms, 2)} ms off"
        pairs += [
            ("Victim", "; ".join(deed.victims)),
            ("Planned", None if deed.planned_at_s is None else f"T0 + {seconds(deed.planned_at_s, 3)} s{late}"),
            ("Outcome", ": ".join(text for text in (deed.outcome, deed.detail) if text)),
            ("Undone", "; ".join(deed.undone)),
        ]
    age = fault.snapshot_age_s
    pairs += [
        ("Snapshot", None if age is None else f"{seconds(age)} s old at the fault"),
        ("Dip", _given(recovery, "dip_depth", lambda value: f"{share(value)} of the usual throughput")),
        ("Longest silence", _given(recovery, "silence_s", lambda value: f"{seconds(value, 2)} s")),
        ("Lag area", _given(recovery, "lag_area_record_s", lambda value: f"{count(value)} record·s")),
    ]
    return [(name, value) for name, value in pairs if value]


def _given(recovery: Mapping[str, Any], key: str, words: Any) -> str | None:
    value = recovery.get(key)
    return None if value is None else str(words(value))


def _restart(story: Story, number: int) -> dict[str, str]:
    restart = story.restarts[number]
    return {
        "after_gate": NONE if restart.after_gate_s is None else seconds(restart.after_gate_s, 3),
        "who": restart.who,
        "what": restart.what,
        "source": restart.source,
    }
