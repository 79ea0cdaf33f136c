"""A night as a file."""

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


def test_without_a_file_there_is_the_one_night_of_the_form(tmp_path: Path) -> None:
    (night,) = nightly_files(tmp_path)
    assert (night.dag_id, night.path, night.schedule, night.form, night.alerts) == (NIGHTLY, None, "0 2 * * *", {}, ())


def test_each_file_is_a_night_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nights").mkdir()
    (tmp_path / "nightly.yaml").write_text(WHOLE)
    (tmp_path / "nights" / "weekly.yaml").write_text("set: [{workload: pi, fault: none}]")
    (tmp_path / "nights" / "Bad.yaml").write_text("{}")
    found = {one.dag_id: one for one in nightly_files(tmp_path)}
    assert set(found) == {NIGHTLY, "night_weekly", "night_Bad"}
    assert all(map(is_nightly, found)) and not is_nightly("recovery")
    assert found["night_Bad"].problem == "Bad.yaml: use small letters, digits, - and _ for the name of a night's file"
    night = found[NIGHTLY]
    assert night.schedule == "30 1 * * 1" and night.form["repetitions"] == 8 and night.problem is None
    assert [(one.when, one.text) for one in night.alerts] == [
        (("worse", "better"), "webhook at hooks.example.org"),
        (("worse", "broken"), "mail to a@example.org, b@example.org"),
        (("broken",), "notifier SmtpNotifier"),
    ], "and nothing secret"
    monkeypatch.setenv("FAULTLINE_NIGHTLY_DIR", str(tmp_path))
    assert len(nightly_files(Path("/nowhere"))) == 3


def test_a_set_holds_configurations_and_points_of_matrices_each_once(tmp_path: Path) -> None:
    (tmp_path / "nightly.yaml").write_text(WHOLE)
    configs = nightly_configurations(parse_nightly(NIGHTLY, tmp_path / "nightly.yaml").form["set"])
    told = [(one.workload, one.fault, one.checkpoint_interval_s) for one in configs]
    assert told == [("pi", "none", 2)] + [
        ("word_count_python", fault, interval) for fault in ("executor", "none") for interval in (2, 5)
    ]
    assert len(nightly_configurations([{"fault": "none"}, {"fault": "none"}])) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", "n.yaml: holds no keys"),
        ("a: [", "n.yaml: is no YAML in line 1"),
        ("repetition: 5", "n.yaml: repetition: unknown key; did you mean repetitions?"),
        ("schedule: daily", "n.yaml: schedule: 'daily' is no cron expression"),
        ("alerts: 5", "n.yaml: alerts: is no list"),
        ("alerts: [{when: worst, slack: x}]", "n.yaml: alerts[0].when: 'worst' is not known; did you mean worse?"),
        ("alerts: [{webhok: 'http://x'}]", "n.yaml: alerts[0].webhok: unknown key; did you mean webhook?"),
        ("alerts: [{when: worse}]", "n.yaml: alerts[0]: names no way to tell; give one of webhook, slack, mail, noti"),
        ("alerts: [{webhook: 'ftp://x'}]", "n.yaml: alerts[0].webhook: 'ftp://x' is no address"),
        ("alerts: [{mail: {to: a}}]", "n.yaml: alerts[0].mail.from: is missing"),
        ("alerts: [{mail: {to: a, from: b, server: 'x:y'}}]", "n.yaml: alerts[0].mail.server: 'x:y' is no HOST:PORT"),
        ("alerts: [{slack: 'https://x', webhook: 'https://x'}]", "n.yaml: alerts[0]: names webhook and slack"),
    ],
)
def test_what_cannot_be_read_names_file_key_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "n.yaml").write_text(text)
    with refused(said):
        parse_nightly("night_n", tmp_path / "n.yaml")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([{"matrix": "recovry"}], "set[0]: matrix: 'recovry' is not known; did you mean recovery?"),
        ([{}, {"matrix": "recovery", "presett": "smoke"}], "set[1]: presett: unknown parameter; did you mean preset?"),
        ([{"matrix": "recovery", "preset": "smok"}], "set[0]: preset: 'smok' is not known"),
        ([5], "set[0]: 5 is no object of parameters"),
        ([{"matrix": "sweep", "axes": {"seed": list(range(80))}}], "set: 80 configurations are more than 64"),
    ],
)
def test_a_wrong_set_is_named_by_its_place(given: list[object], said: str) -> None:
    with refused(said):
        nightly_configurations(given)
