"""Two sweeps side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultline.reports.pages.compare import Pair, compare_page
from faultline.reports.pages.site import Unknown
from tests.unit.pages_store import grid, put, record, rows, site
from tests.unit.reports.test_report import Page
from tests.unit.sample_records import CENSORED, RECOVERED


def test_sweeps_that_share_nothing_are_not_held_side_by_side(tmp_path: Path) -> None:
    put(tmp_path, record("a1", rate=100.0), record("a2", sweep="s2", rate=200.0))
    html = compare_page(site(tmp_path), Pair("s1", "s2"))
    assert "nothing to hold side by side: they differ in rate." in html and not rows(html)


def test_two_sweeps_side_by_side(tmp_path: Path) -> None:
    put(tmp_path, *grid(), *grid(sweep="s2")[:6], record("extra", sweep="s2", state_mb=64.0, latency={"p99": 1.0}))
    put(tmp_path, *grid(sweep="s3", factor=2))
    one = site(tmp_path)
    html = compare_page(one, Pair("s1", "s2"))
    assert "2 configurations in both, 2 in A only, 1 in B only" in Page(html).text
    found = [row for row in rows(html) if "executor kill" in row]
    both = ["8", "2", "executor kill", "8,201 8,200 – 8,202", "3", "8,201 8,200 – 8,202", "3", "1.00"]
    assert (both, ["r0 r1 r2", "r0 r1 r2"]) in [(row[:8], row[-2:]) for row in found]
    one_only = ["1", "2", "executor kill", "1,201 1,200 – 1,202", "3", "—", "0", "—"]
    assert (one_only, ["r0 r1 r2", ""]) in [(row[:8], row[-2:]) for row in found]
    doubled = [row[7] for row in rows(compare_page(one, Pair("s1", "s3"))) if "executor kill" in row]
    assert doubled == ["2.00"] * 4
    asked = compare_page(one, Pair(a="s1"))
    assert '<option value="s1" selected>' in asked and '<option value="s2">' in asked, "names come from lists"
    assert "Choose two sweeps" in asked and '<optgroup label="m">' in asked
    with pytest.raises(Unknown, match="s9"):
        compare_page(one, Pair("s1", "s9"))


def test_the_ratio_is_missing_where_it_would_mislead(tmp_path: Path) -> None:
    put(tmp_path, record("a1", recovery=CENSORED), record("b1", sweep="s2", recovery=RECOVERED))
    one = site(tmp_path)
    macro = compare_page(one, Pair("s1", "s2", metric="recovery.macro_s"))
    assert ["executor kill", "> 33.94", "1", "13.84", "1", "—"] in [row[:6] for row in rows(macro)]
    lost = compare_page(one, Pair("s1", "s2", metric="audit.lost"))
    assert ["executor kill", "0", "1", "0", "1", "—"] in [row[:6] for row in rows(lost)]


def test_five_repetitions_a_side_get_a_verdict_with_its_reason(tmp_path: Path) -> None:
    for sweep, factor in (("s1", 1.0), ("s2", 1.3), ("s3", 1.0)):
        put(
            tmp_path,
            *(
                record(f"{sweep}-{number}", sweep=sweep, repetition=number, latency={"p99": factor * (1000 + number)})
                for number in range(5)
            ),
        )
    put(tmp_path, record("few", sweep="s4"))
    one = site(tmp_path)
    (slower,) = [row for row in rows(compare_page(one, Pair("s1", "s2"))) if "executor kill" in row]
    assert slower[-4:-2] == ["< 0.0001", "worse"] and slower[-5].startswith("+30.0% [")
    (equal,) = [row for row in rows(compare_page(one, Pair("s1", "s3"))) if "executor kill" in row]
    assert equal[-3] == "same"
    (few,) = [row for row in rows(compare_page(one, Pair("s1", "s4"))) if "executor kill" in row]
    assert few[-3] == "cannot tell 1 of 5 repetitions"
    assert "Verdict" not in compare_page(one, Pair("s1", "s1")), "a side held against itself"
