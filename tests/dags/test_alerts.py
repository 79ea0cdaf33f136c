"""Alerts of nightly runs, received by local web and mail servers, and DAGs of several files."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowFailException

from faultline.cli import nightly_command
from faultline.experiment.alert_plan import parse_alerts
from faultline.experiment.nightly_file import NIGHTLY
from faultline.orchestration import matrix_dag
from faultline.orchestration.nightly import alerts, dag_factory, nightly_plan
from faultline.orchestration.nightly.alerts import send_alert
from faultline.orchestration.nightly.dag_factory import nightly_dags
from faultline.reports.notes import AlertContent
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import Settings
from tests.support.receivers import mailbox, webhook
from tests.unit.nightly_records import date_of, nightly_records
from tests.unit.pages_store import put

ALERT = AlertContent(
    "worse", "night_weekly", "2026-11-21T02:00:00+00:00", "Nightly run 2026-11-21: 1 figure worse", ("CPU +11 % <b>",),
    "http://127.0.0.1/x", ({"name": "a", "change": [0.11, 0.06, 0.17]},),
)  # fmt: skip


class Bell(BaseNotifier):
    """User-defined notifier with a template."""

    template_fields = ("text",)
    rung: list[str] = []

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Any) -> None:
        self.rung.append(self.text)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "wait_fixed", lambda seconds: lambda state: 0.0)


@pytest.mark.parametrize("kind", ["worse", "better", "broken"])
def test_an_alert_of_each_kind_arrives_by_web_and_by_mail(kind: str) -> None:
    alert = AlertContent(kind, *list(vars(ALERT).values())[1:])
    with webhook() as (address, posted), mailbox() as (server, mails):
        plans = parse_alerts([
            {"when": [kind], "webhook": address},
            {"when": [kind], "slack": address},
            {"when": [kind], "mail": {"to": "team@example.org", "from": "f@example.org", "server": server,
                                       "tls": False}},
            {"when": [kind], "notifier": {"class": f"{__name__}.Bell", "arguments": {"text": "{{ alert.title }}"}}},
            {"when": [{"worse": "better"}.get(kind, "worse")], "webhook": address},
        ])  # fmt: skip
        reported = send_alert(alert, plans)
    assert len(reported) == 4, "and not the one who asked for another kind"
    plain, slack = posted
    assert plain["kind"] == kind and plain["figures"] == [{"name": "a", "change": [0.11, 0.06, 0.17]}]
    assert plain["text"].splitlines() == [ALERT.title, "CPU +11 % <b>", ALERT.link]
    assert slack == {
        "text": "*Nightly run 2026-11-21: 1 figure worse*\n• CPU +11 % &lt;b&gt;\n<http://127.0.0.1/x|Results>"
    }
    (mail,) = mails
    assert mail["Subject"] == ALERT.title and mail["To"] == "team@example.org" and mail["From"] == "f@example.org"
    body = mail.get_body()
    assert body is not None and "CPU +11 % &lt;b&gt;" in body.get_content() and ALERT.link in body.get_content()
    assert Bell.rung.pop() == ALERT.title


def test_alert_texts_are_escaped_in_slack_and_mail_headers() -> None:
    evil = "worse <!channel> & <b>it</b>\nBcc: x@example.org\r\n\r\n{{ 7 * 7 }}"
    alert = AlertContent("worse", "d", "n", evil, (evil,), "http://127.0.0.1/x")
    with webhook() as (address, posted), mailbox() as (server, mails):
        mail_to = {"to": "t@example.org", "from": "f@example.org", "server": server, "tls": False}
        send_alert(alert, parse_alerts([{"when": ["worse"], "slack": address}, {"when": ["worse"], "mail": mail_to}]))
    text = posted[0]["text"].removesuffix("\n<http://127.0.0.1/x|Results>")
    assert "<" not in text and text.count("\n") == 1 and "&lt;!channel&gt; &amp;" in text
    (mail,) = mails
    assert mail["Bcc"] is None and "Bcc: x@example.org" in mail["Subject"] and "{{ 7 * 7 }}" in mail["Subject"]
    body = mail.get_body()
    assert body is not None and "<b>" not in body.get_content() and "{{ 7 * 7 }}" in body.get_content()


def test_a_failed_recipient_is_named_after_all_others_were_tried() -> None:
    with webhook() as (gone, _):
        pass
    with webhook(refusals=2) as (address, posted):
        plans = parse_alerts([{"webhook": gone}, {"webhook": address}])
        with pytest.raises(
            InfrastructureError, match="alerts: delivery failed: webhook at 127.0.0.1: webhook: URLError"
        ):
            send_alert(ALERT, plans)
    assert len(posted) == 1, "tried three times"
    with pytest.raises(InfrastructureError, match=r"notifier: got os\.path\.join"):
        send_alert(ALERT, parse_alerts([{"notifier": {"class": "os.path.join", "arguments": {"a": "b"}}}]))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Settings) -> Path:
    """Folder for nightly files, in an installation whose programs are in a git repository."""
    settings = replace(installed, root=tmp_path)
    for module in (dag_factory, nightly_plan, matrix_dag):
        monkeypatch.setattr(module, "load_settings", lambda: settings)
    monkeypatch.setenv("FAULTLINE_NIGHTLY_DIR", str(tmp_path))
    (tmp_path / "nights").mkdir()
    commit = ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "--allow-empty", "-m", "t"]
    for words in (["init", "-q"], commit):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def write(folder: Path, **nights: Any) -> None:
    """Write nightly files by name, from text or values."""
    for name, content in nights.items():
        path = folder / "nightly.yaml" if name == "nightly" else folder / "nights" / f"{name}.yaml"
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_each_file_becomes_a_dag_and_a_broken_one_reports_its_error(
    files: Path, as_nightly_run: Callable[..., None]
) -> None:
    write(files, nightly="repetitions: 7\nset: [{workload: pi, fault: none}]", typo="repetitions: many")
    write(files, weekly="schedule: '0 3 * * 0'\nalerts: [{webhook: 'http://127.0.0.1:1/'}]")
    dags = nightly_dags(files)
    assert set(dags) == {NIGHTLY, "night_weekly", "night_weekly_watch", "night_typo"}
    assert dags[NIGHTLY].params["repetitions"] == 7 and dags["night_weekly"].schedule.expression == "0 3 * * 0"
    assert dags["night_weekly"].params["set"] == dag_factory.DEFAULT_SET
    assert dags["night_typo"].description.startswith("typo.yaml: repetitions: ")
    as_nightly_run(dags["night_typo"], 1)
    write(files, typo="repetition: 5")
    with pytest.raises(AirflowFailException, match="typo.yaml: repetition: unknown key; did you mean repetitions"):
        dag_factory.plan_nightly_run.function()


def test_the_outcome_of_a_nightly_run_is_sent_to_its_recipients(
    files: Path, as_nightly_run: Callable[..., None]
) -> None:
    """The third run is slower; the fourth did not start."""
    with webhook() as (address, posted):
        asked = {"metrics": ["latency_ms.p99"], "repetitions": 1, "controls": 1, "build": "b1"}
        write(files, nightly={**asked, "alerts": [{"when": ["worse", "better", "broken"], "webhook": address}]})
        dag = nightly_dags(files)[NIGHTLY]
        put(files / "results", *nightly_records(1, 100), *nightly_records(2, 100), *nightly_records(3, 150))
        as_nightly_run(dag, 3)
        dag_factory.plan_nightly_run.function()
        dag_factory.compare_with_baseline.function()
        dag_factory.send_alerts.function()
        reported = posted.pop()
        assert (reported["kind"], reported["night"], reported["dag_id"]) == ("worse", date_of(3), NIGHTLY)
        assert any("Latency p99" in line for line in reported["lines"]) and reported["figures"]
        assert reported["link"].endswith("/faultline/sweeps/20261103T020000")
        dag_factory.check_started.function(NIGHTLY)
        as_nightly_run(dag, 4)
        dag_factory.send_alerts.function()
        assert posted.pop()["title"] == "Nightly run 2026-11-04: not planned"
        with pytest.raises(AirflowFailException, match="was due at 2026-11-04T02:00:00.* and has no plan"):
            dag_factory.check_started.function(NIGHTLY)
        assert posted.pop()["title"] == "Nightly run 2026-11-04: not started"
        write(files, nightly="{build: b1}")
        dag_factory.send_alerts.function()
        assert not posted, "no recipient"


def test_a_file_is_explained_in_words_and_minutes(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = [{"workload": "pi", "fault": "none"}, {"matrix": "recovery", "preset": "smoke"}]
    reported = [{"webhook": "https://hooks.example.org/T0/secret"}]
    write(files, nightly={"set": measured, "baseline": {"revision": "HEAD"}, "repetitions": 10, "alerts": reported})
    nightly_command.check(None)
    expected = capsys.readouterr().out
    assert (
        "measures 2 configurations" in expected
        and "in 10 pairs with" in expected
        and "40 experiments, about " in expected
    )
    assert "alerts webhook at hooks.example.org (worse, broken)" in expected and "secret" not in expected


PI = "set: [{workload: pi, fault: none}]\nbaseline: {revision: "


@pytest.mark.parametrize(
    ("content", "asked", "refused"),
    [
        (f"{PI}v9.9}}", "weekly", "baseline.revision: got 'v9.9'"),
        (f"{PI}HEAD}}\nrepetitions: 4", "weekly", "repetitions: got 4 pairs for 1 configuration; expected 6"),
        ("set: [{rate: -1}]", "weekly", "weekly.yaml: set[0]: rate: "),
        ("set: [{rate: 1}]", "wekly", "wekly: no such nightly file; did you mean weekly"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_its_place(files: Path, content: str, asked: str, refused: str) -> None:
    write(files, weekly=content)
    with pytest.raises(ConfigError, match=re.escape(refused)):
        nightly_command.check(asked)


def test_a_readable_password_file_is_refused_before_a_nightly_run(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = files / "password"
    mail = {"to": "a@b.example", "from": "f@b.example", "server": "m.example:587", "password_file": str(secret)}
    write(files, nightly={"set": [{"rate": 100}], "alerts": [{"mail": mail}]})
    with pytest.raises(ConfigError, match=r"mail\.password_file: "):
        nightly_command.check("nightly")
    secret.write_text("of the mail server")
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match=r"password: got mode 0644; .*chmod 0600"):
        nightly_command.check("nightly")
    secret.chmod(0o600)
    nightly_command.check("nightly")
    assert "mail to a@b.example" in capsys.readouterr().out


def test_an_alert_is_tried_out(files: Path) -> None:
    with pytest.raises(ConfigError, match="^alerts: missing"):
        nightly_command.test_alert(None, "test")
    with webhook() as (address, posted):
        write(files, nightly={"alerts": [{"when": ["worse"], "webhook": address}]})
        nightly_command.test_alert(None, "test")
        nightly_command.test_alert("nightly", "worse")
        for kind, expected in (("broken", "no recipient"), ("worst", "did you mean worse")):
            with pytest.raises(ConfigError, match=f"--kind: got {kind}.*{expected}"):
                nightly_command.test_alert(None, kind)
    tried, preview = posted
    assert (tried["kind"], preview["kind"]) == ("test", "worse")
    assert tried["title"].startswith("Test") and preview["title"].startswith("Test")
    assert tried["figures"] == [] and "sample figures" in tried["lines"][0]
    assert "1 figure worse" in preview["title"] or "figures worse" in preview["title"]
    assert "sample figures" in preview["lines"][0] and "+22 %" in preview["lines"][1]
    assert "2 runs in a row" in preview["text"]
    assert preview["figures"][0]["finding"] == "worse" and preview["figures"][0]["change"][0] > 0.2
