"""Results as a Markdown page: the table, what it was measured on, and the papers' findings beside it."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from faultline.errors import ConfigError
from faultline.findings import findings
from faultline.record import Record
from faultline.table import NONE, fault_of, macro, seconds, share

PARTS = ("detection_s", "redeploy_s", "load_s", "reload_s", "replay_s", "catchup_s")
HEADINGS = ("detection", "redeploy", "load", "**reload**", "replay", "catch-up")
# What a reader wants to know of the configuration; the axes stand in the table.
SETTINGS = (
    "workload", "rate", "warmup_s", "duration_s", "commit_mode", "executors", "executor_cores", "executor_memory_mb",
    "partitions", "restart_delay_s", "seed",
)  # fmt: skip


def recovery_page(records: Sequence[Record], *, title: str) -> str:
    """The page of a `recovery` sweep. Raises ConfigError when there is nothing to show."""
    if not records:
        raise ConfigError("results: no record matches; nothing to write")
    builds = sorted({record.build for record in records if record.status == "valid"})
    if len(builds) > 1:
        raise ConfigError(
            f"results: {len(builds)} builds ({', '.join(builds)}) do not mix; name one sweep with --sweep"
        )
    return "\n".join(
        [
            f"# {title}",
            "",
            "Made by `./faultline results --matrix recovery --page FILE` from the records, not by hand. Definitions: "
            "[metrics.md](../metrics.md).",
            "",
            *_measured_on(records),
            "",
            "## Times in seconds",
            "",
            *_table(records),
            "",
            "Times are medians and counts are sums over the n records of a row. `>` is a recovery that was not seen to "
            "end within the window: a bound, not a number.",
            *_invalid(records),
            "",
            "## The paper's findings",
            "",
            "The paper measured Flink and Storm on a cluster; this is Spark on one machine. A verdict says whether the "
            "same holds here.",
            "",
            "| finding | this measurement | because |",
            "| --- | --- | --- |",
            *(f"| {one.claim} | **{one.verdict.value}** | {one.evidence} |" for one in findings(records)),
            "",
        ]
    )


def _measured_on(records: Sequence[Record]) -> list[str]:
    first = records[0].environment
    versions = ", ".join(f"{name} {value}" for name, value in sorted((first.versions or {}).items()))
    settings = ", ".join(f"`{name}` {_values(records, name)}" for name in SETTINGS)
    commits = sorted({str(record.environment.git_commit)[:12] for record in records})
    dates = sorted(record.measured_at[:10] for record in records)
    memory = NONE if first.memory_mb is None else f"{first.memory_mb / 1024:.0f} GiB"
    shared = "oversubscribed" if first.oversubscribed else "not oversubscribed"
    return [
        f"- Machine: {first.cores} cores ({shared}), {memory}; everything on it, broker and generator included.",
        f"- Software: {versions}; Faultline {', '.join(commits)}.",
        f"- Settings: {settings}.",
        f"- Measured {dates[0]}{'' if dates[0] == dates[-1] else ' to ' + dates[-1]}, {len(records)} records.",
    ]


def _values(records: Sequence[Record], name: str) -> str:
    found = dict.fromkeys(json.dumps(record.config.get(name)) for record in records)
    return " or ".join(text.strip('"') for text in found)


def _table(records: Sequence[Record]) -> list[str]:
    heads = [
        "victim",
        "interval",
        "state MB",
        *HEADINGS,
        "**macro**",
        "silence",
        "dip",
        "lost",
        "re-emitted",
        "p99 ms",
        "n",
    ]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if record.status == "valid":
            config = record.config
            key = (fault_of(config) == "control", fault_of(config), config["checkpoint_interval_s"], config["state_mb"])
            groups.setdefault(key, []).append(record)
    for (_, fault, interval, state), group in sorted(groups.items()):
        cells = [fault, f"{interval:g}", f"{state:g}", *(_median(group, name) for name in PARTS)]
        cells += [_macro(group), _median(group, "silence_s"), _dip(group)]
        cells += [_total(group, "lost"), _total(group, "reemitted"), _p99(group), str(len(group))]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _median(group: Sequence[Record], name: str) -> str:
    values = [getattr(record.metrics.recovery, name) for record in group]
    known = [float(value) for value in values if value is not None]
    return seconds(statistics.median(known), 2) if known and len(known) == len(values) else NONE


def _macro(group: Sequence[Record]) -> str:
    """The median when all were seen to recover, else the single values."""
    ended = [record.metrics.recovery.macro_s for record in group]
    known = [value for value in ended if value is not None]
    if known and len(known) == len(ended):
        return seconds(statistics.median(known), 1)
    return ", ".join(macro(record) for record in group)


def _dip(group: Sequence[Record]) -> str:
    known = [record.metrics.recovery.dip_depth for record in group]
    depths = [value for value in known if value is not None]
    return share(statistics.median(depths)) if depths else NONE


def _total(group: Sequence[Record], name: str) -> str:
    return str(sum(int(getattr(record.metrics.audit, name) or 0) for record in group))


def _p99(group: Sequence[Record]) -> str:
    known = [record.metrics.latency_ms.p99 for record in group]
    values = [value for value in known if value is not None]
    return f"{statistics.median(values):.0f}" if values else NONE


def _invalid(records: Sequence[Record]) -> list[str]:
    """What was measured and not believed, by reason."""
    reasons = Counter(
        reason.split(":")[0] for record in records if record.status != "valid" for reason in record.reasons
    )
    if not reasons:
        return []
    listed = ", ".join(f"{code} ({number})" for code, number in sorted(reasons.items()))
    return ["", f"Measured as well, not valid and not shown: {listed}."]
