"""Whether an audit shows that every tuple was counted exactly once, or only that as many were counted as came."""

from __future__ import annotations

from collections.abc import Iterable

from faultline.experiment.workloads.registry import WORKLOADS
from faultline.records.record import Record

# What an exact run has none of, by its name in the audit.
MISCOUNTS = ("lost", "overcounted", "wrong", "sums_differ")


def miscounts(records: Iterable[Record]) -> dict[str, int]:
    """The sum over records of each of MISCOUNTS; what is unknown counts as none, and sums that nobody has are left
    out."""
    audits = [record.metrics.audit for record in records]
    known = MISCOUNTS if any(audit.sums_differ is not None for audit in audits) else MISCOUNTS[:-1]
    return {name: sum(getattr(audit, name) or 0 for audit in audits) for name in known}


def tells_tuples(record: Record) -> bool:
    """Whether its audit knows which tuples were counted: by sums of their hashes, or by the ids that outputs carry."""
    if record.metrics.audit.sums_differ is not None:
        return True
    kind = WORKLOADS.get(str(record.config.get("workload")))
    return kind is not None and kind.carries_ids and record.metrics.audit.lost is not None
