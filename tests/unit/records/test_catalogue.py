"""Figures are named in words, whoever has named them."""

from __future__ import annotations

import pytest

from faultline.records.catalogue import metrics_of, named
from faultline.records.summary import Entry
from tests.unit.sample_records import RECOVERED, sample


@pytest.mark.parametrize(
    ("key", "title", "group"),
    [
        ("latency_ms.p99", "Latency p99 (ms)", "Latency"),
        ("schedule_lag_ms.max", "Schedule lag maximum (ms)", "Generator"),
        ("audit.expected", "Expected (tuples)", "Audit"),
        ("cpu_nodes.big-1", "CPU of node big-1 (cores)", "CPU"),
        ("later_part.odd_thing_s", "Later part · odd thing (s)", "Others"),
        ("latency_late_ms.p42", "Latency late · p42 (ms)", "Others"),
        ("latency_after_ms.count", "Tuples measured after the recovery", "Latency"),
    ],
)
def test_a_path_has_a_name_in_words_and_its_unit_once(key: str, title: str, group: str) -> None:
    assert (named(key).title, named(key).group) == (title, group)


def test_no_list_to_choose_from_shows_a_path() -> None:
    listed = metrics_of([Entry.of(sample(recovery=RECOVERED))])
    assert len(listed) > 20
    assert [metric.title for metric in listed if "_" in metric.title or " · " in metric.title] == []
