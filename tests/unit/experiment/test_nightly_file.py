"""Files that define nightly runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultline.experiment.nightly_file import NIGHTLY, is_nightly, nightly_configurations, nightly_files, parse_nightly
from tests.support.refusals import refused

WHOLE = """
schedule: "30 1 * * 1"
set:
  - {workload: pi, iterations: 100, fault: none}
  - {matrix: recovery, preset: smoke, fault: [executor, none], checkpoint_interval_s: "2, 5", duration_s: 90}
repetitions: 8
baseline: {revision: HEAD}
alerts:
  - when: [worse, better]
    webhook: https://hooks.example.org/services/T0/secret
  - mail: {to: [a@example.org, b@example.org], from: f@example.org, server: "127.0.0.1:1025", tls: false}
  - when: broken
    notifier: {class: airflow.providers.smtp.notifications.smtp.SmtpNotifier, arguments: {to: a@example.org}}
"""


def test_default_nightly_run_exists_without_a_file(tmp_path: Path) -> None:
    (only,) = nightly_files(tmp_path)
    assert (only.dag_id, only.path, only.schedule, only.form, only.alerts) == (NIGHTLY, None, "0 2 * * *", {}, ())


def test_each_file_defines_a_nightly_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nights").mkdir()
    (tmp_path / "nightly.yaml").write_text(WHOLE)
    (tmp_path / "nights" / "weekly.yaml").write_text("set: [{workload: pi, fault: none}]")
    (tmp_path / "nights" / "Bad.yaml").write_text("{}")
    found = {one.dag_id: one for one in nightly_files(tmp_path)}
    assert set(found) == {NIGHTLY, "night_weekly", "night_Bad"}
    assert all(map(is_nightly, found)) and not is_nightly("recovery")
    assert (found["night_Bad"].problem or "").startswith("Bad.yaml: ")
    nightly = found[NIGHTLY]
    assert nightly.schedule == "30 1 * * 1" and nightly.form["repetitions"] == 8 and nightly.problem is None
    assert [(one.when, one.text) for one in nightly.alerts] == [
        (("worse", "better"), "webhook at hooks.example.org"),
        (("worse", "broken"), "mail to a@example.org, b@example.org"),
        (("broken",), "notifier SmtpNotifier"),
    ], "secrets are not shown"
    monkeypatch.setenv("FAULTLINE_NIGHTLY_DIR", str(tmp_path))
    assert len(nightly_files(Path("/nowhere"))) == 3


def test_set_contains_configurations_and_matrix_points_once(tmp_path: Path) -> None:
    (tmp_path / "nightly.yaml").write_text(WHOLE)
    configs = nightly_configurations(parse_nightly(NIGHTLY, tmp_path / "nightly.yaml").form["set"])
    points = [(one.workload, one.fault, one.checkpoint_interval_s) for one in configs]
    assert points == [("pi", "none", 2)] + [
        ("word_count_python", fault, interval) for fault in ("executor", "none") for interval in (2, 5)
    ]
    assert len(nightly_configurations([{"fault": "none"}, {"fault": "none"}])) == 1


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("- a", "n.yaml"),
        ("a: [", "n.yaml"),
        ("repetition: 5", "n.yaml: repetition"),
        ("schedule: daily", "n.yaml: schedule"),
        ("alerts: 5", "n.yaml: alerts"),
        ("alerts: [{when: worst, slack: x}]", "n.yaml: alerts[0].when"),
        ("alerts: [{webhok: 'http://x'}]", "n.yaml: alerts[0].webhok"),
        ("alerts: [{when: worse}]", "n.yaml: alerts[0]"),
        ("alerts: [{webhook: 'ftp://x'}]", "n.yaml: alerts[0].webhook"),
        ("alerts: [{mail: {to: a}}]", "n.yaml: alerts[0].mail.from"),
        ("alerts: [{mail: {to: a, from: b, server: 'x:y'}}]", "n.yaml: alerts[0].mail.server"),
        ("alerts: [{slack: 'https://x', webhook: 'https://x'}]", "n.yaml: alerts[0]"),
    ],
)
def test_invalid_file_names_file_and_key(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "n.yaml").write_text(text)
    with refused(f"{key}: "):
        parse_nightly("night_n", tmp_path / "n.yaml")


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ([{"matrix": "recovry"}], "set[0]: matrix"),
        ([{}, {"matrix": "recovery", "presett": "smoke"}], "set[1]: presett"),
        ([{"matrix": "recovery", "preset": "smok"}], "set[0]: preset"),
        ([5], "set[0]"),
        ([{"matrix": "sweep", "axes": {"seed": list(range(80))}}], "set"),
    ],
)
def test_invalid_set_names_entry_and_key(given: list[object], key: str) -> None:
    with refused(f"{key}: "):
        nightly_configurations(given)
