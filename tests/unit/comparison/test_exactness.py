"""What an audit shows: that as many were counted as came, or which."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.findings.finding import MISCOUNTS, miscounts, tells_tuples
from faultline.records.record import AuditPart, Record
from tests.unit.sample_records import sample

some = st.none() | st.integers(0, 9)
audits = st.builds(AuditPart, **dict.fromkeys((*MISCOUNTS, "expected", "reemitted", "unknown"), some))
workloads = st.sampled_from(["word_count", "pi", "known_truth", "topology", "nexmark", "of another version", None])


def record(audit: AuditPart, workload: str | None = "word_count") -> Record:
    made = sample(fault="none", raw_config={"workload": workload})
    return made.model_copy(update={"metrics": made.metrics.model_copy(update={"audit": audit})})


@given(st.lists(audits, max_size=4))
def test_miscounts_add_up_and_sums_are_named_where_they_are_kept(found: list[AuditPart]) -> None:
    told = miscounts(record(audit) for audit in found)
    assert ("sums_differ" in told) is any(audit.sums_differ is not None for audit in found)
    for name, number in told.items():
        assert number == sum(getattr(audit, name) or 0 for audit in found)
    assert list(told) == [name for name in MISCOUNTS if name in told]


@given(audits, workloads)
def test_which_tuples_were_counted_is_known_by_sums_or_by_ids(audit: AuditPart, workload: str | None) -> None:
    by_ids = workload in ("pi", "known_truth") and audit.lost is not None
    assert tells_tuples(record(audit, workload)) is (audit.sums_differ is not None or by_ids)
