"""Rows of the result table: texts of the catalogue's columns for each record, in order."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.workloads.registry import has_schedule, workload_of
from faultline.records.catalogue import MACRO, TAIL, columns_in
from faultline.records.columns import Metric, Sheet
from faultline.records.format import (
    CONTROL,
    FAULT_KEYS,
    NONE,
    cores,
    count,
    fault_of,
    macro,
    on_engine,
    plain,
    tail,
    title_of,
)
from faultline.records.index_entry import IndexEntry
from faultline.records.record import Record
from faultline.reports.views.experiment_report import repeated_parts
from faultline.system.errors import ConfigError
from faultline.system.text import sort_key

# Parameters that the command does not repeat: the workload is named, and `rerun_command` appends `truth` itself.
_OMITTED = {"workload", "truth"}
_SHORT_FORM = {"fault", "fault_action", "fault_at_s"}
# Identifying columns first, status last.
COLUMNS = sorted(columns_in(Sheet.RUNS), key=lambda column: column.key == "status")
# Columns that are shown even if empty; other columns only if a row has a value.
_ALWAYS = frozenset({"number", "fault", "latency_ms.p50", TAIL, "status"})
_SHOWN = frozenset({"query", "state_mb", "checkpoint_interval_s", "restart_delay_s"}) | FAULT_KEYS


def load_parts(config: Mapping[str, Any]) -> list[str]:
    """Return workload and offered load in parts: `nexmark`, `query q5`, `unthrottled`."""
    title = workload_of(config).title(config)
    rate = config.get("rate", "?")
    offered = f"{rate:,.10g}" if isinstance(rate, int | float) else plain(rate)
    offered = f"{offered} records/s" if has_schedule(config) else "unthrottled"
    return [f"{config.get('workload', '?')}{on_engine(config)}", *([title] if title else []), offered]


def run_name(record: Record) -> str:
    """Return the short name of an experiment."""
    return title_of(record.config)


def sort_records(records: Sequence[Record]) -> list[Record]:
    """Sort by workload, state, interval, other varying parameters, fault (controls last), repetition and attempt."""
    others = sorted(_varying_keys(records) - {"state_mb", "checkpoint_interval_s"} - FAULT_KEYS)

    def key(record: Record) -> tuple[Any, ...]:
        config = record.config
        axes = ("workload", "state_mb", "checkpoint_interval_s", *others)
        return (
            *(sort_key(config.get(name)) for name in axes),
            fault_of(config) == CONTROL,
            fault_of(config),
            record.repetition,
            record.attempt,
        )

    return sorted(records, key=key)


def table_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    """Return one row of texts per record, in the order of `sort_records`.

    Keys: those of COLUMNS, `reason` (the first one, or empty) and `varies` (other varying parameters, or empty).
    """
    others = sorted(_varying_keys(records) - _SHOWN)
    repeated = len({record.repetition for record in records}) > 1
    builds = len({record.build for record in records}) > 1
    # If other runs have a figure, a dash would look like an unknown value.
    usual = "offered" if any(map(_has_own_throughput, records)) else NONE
    rows = []
    for number, record in enumerate(sort_records(records), start=1):
        entry, metrics, config = IndexEntry.of(record), record.metrics, record.config
        # A parameter that this run lacks does not describe it.
        varies = [f"{name} {plain(config[name])}" for name in others if config.get(name) is not None]
        varies += [f"build {record.build}"] if builds else []
        rows.append(
            {column.key: _text(column.value(entry), column) for column in COLUMNS}
            | {"number": str(number), TAIL: tail(metrics.latency_ms), MACRO: macro(record)}
            | {"audit.undrained": count(metrics.audit.undrained or None), "injections.made": _injection_count(record)}
            | ({} if repeated else {"repetition": NONE})
            | ({} if _has_own_throughput(record) else {"throughput_rps": usual})
            | {"reason": record.reasons[0] if record.reasons else "", "varies": ", ".join(varies)}
        )
    return rows


def used_columns(rows: Sequence[Mapping[str, str]]) -> list[Any]:
    """Return the columns with a value in any row; zero CPU counts as no value."""
    useless = {NONE, cores(0)}
    return [
        column for column in COLUMNS if not rows or column.key in _ALWAYS or {row[column.key] for row in rows} - useless
    ]


def _text(value: Any, column: Any) -> str:
    return column.text(value, 1) if isinstance(column, Metric) else column.text(value)


def _has_own_throughput(record: Record) -> bool:
    """Return whether the throughput is a result: False if a scheduled load was sustained, so both are equal."""
    kind = workload_of(record.config)
    return kind.counts != "records" or not has_schedule(record.config) or record.metrics.sustained is False


def _injection_count(record: Record) -> str:
    """Return the number of recoveries behind the medians of a row, with the number of injections if it differs."""
    planned, seen = len(record.metrics.recoveries), len(repeated_parts(record))
    if not seen:
        return NONE
    return str(seen) if seen == planned else f"{seen} of {planned}"


def _varying_keys(records: Sequence[Record]) -> set[str]:
    """Return the configuration keys that differ between records, without a derived `duration_s`."""
    keys = {key for record in records for key in record.config}
    found = {key for key in keys if len({repr(record.config.get(key)) for record in records}) > 1}
    return found - {"duration_s"} if found & {"checkpoint_interval_s", "fault"} else found


def rerun_command(record: Record) -> str:
    """Return the shell command that repeats the experiment, with all values that differ from the defaults."""
    config = record.config
    defaults = {name: field.default for name, field in Configuration.model_fields.items()}
    defaults |= workload_of(config).defaults(config)
    planned = config.get("fault_plan") is not None
    changed = []
    for name, value in config.items():
        if name in _OMITTED or (planned and name in _SHORT_FORM) or value is None:
            continue
        if name in defaults and value != defaults[name]:
            changed.append((name, value))
    for derived in ("duration_s", "fault_at_s"):
        if _is_derived(derived, config, dict(changed)):
            changed = [(name, value) for name, value in changed if name != derived]
    if config.get("truth") is not None:
        changed.append(("truth", config["truth"]))
    words = [shlex.quote(f"{name}={_argument_text(value)}") for name, value in changed]
    words += [f"repetition={record.repetition}"] if record.repetition else []
    return " ".join(["./faultline run", shlex.quote(str(config.get("workload"))), *words])


def _is_derived(name: str, config: Mapping[str, Any], changed: Mapping[str, Any]) -> bool:
    """Return whether the field would have the same value if it were omitted."""
    rest = {key: value for key, value in changed.items() if key != name}
    try:
        made = parse_configuration({"workload": config.get("workload"), **rest})
    except ConfigError:
        return False
    return name in changed and getattr(made, name) == config[name]


def _argument_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, Mapping | list) else plain(value)
