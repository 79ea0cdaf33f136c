"""Alerts of nights, received by a local web server and a local mail server; and the DAGs of several files."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowFailException

from faultline.cli import nights_command
from faultline.experiment.alert_plan import parse_alerts
from faultline.experiment.night_file import NIGHTLY
from faultline.orchestration import sweep
from faultline.orchestration.nights import alerts, night_plan, nightly
from faultline.orchestration.nights.alerts import Alert, send
from faultline.orchestration.nights.nightly import nightly_dags
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import Settings
from tests.support.receivers import mailbox, webhook
from tests.unit.night_records import night_of, night_records, scheduled
from tests.unit.pages_store import put

ALERT = Alert(
    "worse", "night_weekly", "2026-11-21T02:00:00+00:00", "Night 2026-11-21: 1 figure worse", ("CPU +11 % <b>",),
    "http://127.0.0.1/x", ({"name": "a", "change": [0.11, 0.06, 0.17]},),
)  # fmt: skip


class Bell(BaseNotifier):
    """A notifier of somebody's own, with a template."""

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
    alert = Alert(kind, *list(vars(ALERT).values())[1:])
    with webhook() as (address, posted), mailbox() as (server, mails):
        plans = parse_alerts([
            {"when": [kind], "webhook": address},
            {"when": [kind], "slack": address},
            {"when": [kind], "mail": {"to": "team@example.org", "from": "f@example.org", "server": server,
                                       "tls": False}},
            {"when": [kind], "notifier": {"class": f"{__name__}.Bell", "arguments": {"text": "{{ alert.title }}"}}},
            {"when": [{"worse": "better"}.get(kind, "worse")], "webhook": address},
        ])  # fmt: skip
        told = send(alert, plans)
    assert len(told) == 4, "and not the one who asked for another kind"
    plain, slack = posted
    assert plain["kind"] == kind and plain["figures"] == [{"name": "a", "change": [0.11, 0.06, 0.17]}]
    assert plain["text"].splitlines() == [ALERT.title, "CPU +11 % <b>", ALERT.link]
    assert slack == {"text": "*Night 2026-11-21: 1 figure worse*\n• CPU +11 % &lt;b&gt;\n<http://127.0.0.1/x|Results>"}
    (mail,) = mails
    assert mail["Subject"] == ALERT.title and mail["To"] == "team@example.org" and mail["From"] == "f@example.org"
    body = mail.get_body()
    assert body is not None and "CPU +11 % &lt;b&gt;" in body.get_content() and ALERT.link in body.get_content()
    assert Bell.rung.pop() == ALERT.title


def test_texts_of_records_wake_nobody_and_begin_no_header() -> None:
    evil = "worse <!channel> & <b>it</b>\nBcc: x@example.org\r\n\r\n{{ 7 * 7 }}"
    alert = Alert("worse", "d", "n", evil, (evil,), "http://127.0.0.1/x")
    with webhook() as (address, posted), mailbox() as (server, mails):
        mail_to = {"to": "t@example.org", "from": "f@example.org", "server": server, "tls": False}
        send(alert, parse_alerts([{"when": ["worse"], "slack": address}, {"when": ["worse"], "mail": mail_to}]))
    text = posted[0]["text"].removesuffix("\n<http://127.0.0.1/x|Results>")
    assert "<" not in text and text.count("\n") == 1 and "&lt;!channel&gt; &amp;" in text
    (mail,) = mails
    assert mail["Bcc"] is None and "Bcc: x@example.org" in mail["Subject"] and "{{ 7 * 7 }}" in mail["Subject"]
    body = mail.get_body()
    assert body is not None and "<b>" not in body.get_content() and "{{ 7 * 7 }}" in body.get_content()


def test_one_that_cannot_be_reached_is_named_after_all_others_were_told() -> None:
    with webhook() as (gone, _):
        pass
    with webhook(refusals=2) as (address, posted):
        plans = parse_alerts([{"webhook": gone}, {"webhook": address}])
        with pytest.raises(
            InfrastructureError, match="alerts: not delivered to webhook at 127.0.0.1: webhook: URLError"
        ):
            send(ALERT, plans)
    assert len(posted) == 1, "tried three times"
    with pytest.raises(InfrastructureError, match=r"notifier: os\.path\.join is no notifier of Airflow's"):
        send(ALERT, parse_alerts([{"notifier": {"class": "os.path.join", "arguments": {"a": "b"}}}]))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the files of nights, of an installation with a place for results."""
    settings = Settings(tmp_path, tmp_path / "home", tmp_path / "results")
    for module in (nightly, night_plan, sweep):
        monkeypatch.setattr(module, "load_settings", lambda: settings)
    monkeypatch.setattr("faultline.orchestration.airflow_api.write_note", lambda *said: None)
    monkeypatch.setenv("FAULTLINE_NIGHTS", str(tmp_path))
    (tmp_path / "nights").mkdir()
    # A revision is looked for where the programs lie.
    for words in (
        ["init", "-q"],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "--allow-empty", "-m", "t"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_each_file_becomes_a_dag_and_a_broken_one_says_so_itself(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files / "nightly.yaml").write_text("repetitions: 7\nset: [{workload: pi, fault: none}]")
    (files / "nights" / "weekly.yaml").write_text("schedule: '0 3 * * 0'\nalerts: [{webhook: 'http://127.0.0.1:1/'}]")
    (files / "nights" / "typo.yaml").write_text("repetitions: many")
    dags = nightly_dags(files)
    assert set(dags) == {NIGHTLY, "night_weekly", "night_weekly_watch", "night_typo"}
    assert dags[NIGHTLY].params["repetitions"] == 7 and dags["night_weekly"].schedule.expression == "0 3 * * 0"
    assert dags["night_weekly"].params["set"] == nightly.DEFAULT_SET
    assert dags["night_typo"].description.startswith("typo.yaml: repetitions: ")
    context = {"params": dags["night_typo"].params.dump(), "dag": dags["night_typo"], "run_id": "r"}
    for module in (nightly, sweep):
        monkeypatch.setattr(module, "get_current_context", lambda: context)
    (files / "nights" / "typo.yaml").write_text("repetition: 5")
    with pytest.raises(AirflowFailException, match="typo.yaml: repetition: unknown key; did you mean repetitions"):
        nightly.plan_night.function()


def test_what_a_night_came_to_is_told_to_whoever_asked(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks themselves, with records that were made up: the third night is slower, the fourth did not run."""
    with webhook() as (address, posted):
        (files / "nightly.yaml").write_text(
            "metrics: [latency_ms.p99]\nrepetitions: 1\ncontrols: 1\nbuild: b1\n"
            f"alerts: [{{when: [worse, better, broken], webhook: '{address}'}}]"
        )
        dag = nightly_dags(files)[NIGHTLY]

        def as_night(number: int) -> None:
            night = datetime.fromisoformat(night_of(number))
            run = scheduled(night)
            context = {"params": dag.params.dump(), "dag": dag, "run_id": f"scheduled__{night.isoformat()}",
                       "logical_date": night, "dag_run": run}  # fmt: skip
            for module in (nightly, sweep):
                monkeypatch.setattr(module, "get_current_context", lambda: context)

        put(files / "results", *night_records(1, 100), *night_records(2, 100), *night_records(3, 150))
        as_night(3)
        nightly.plan_night.function()
        nightly.compare_with_baseline.function()
        nightly.tell_people.function()
        told = posted.pop()
        assert told["kind"] == "worse" and told["night"] == night_of(3) and told["dag_id"] == NIGHTLY
        assert any("Latency p99" in line for line in told["lines"]) and told["figures"]
        assert told["link"].endswith("/faultline/sweeps/20261103T020000")
        nightly.require_begun.function(NIGHTLY)
        as_night(4)
        nightly.tell_people.function()
        assert posted.pop()["title"] == "Night 2026-11-04: not planned"
        with pytest.raises(AirflowFailException, match="was due at 2026-11-04T02:00:00.* and has no plan"):
            nightly.require_begun.function(NIGHTLY)
        assert posted.pop()["title"] == "Night 2026-11-04: not begun"
        (files / "nightly.yaml").write_text("{build: b1}")
        nightly.tell_people.function()
        assert not posted, "nobody asked"


def test_a_file_is_explained_in_words_and_minutes(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "nightly.yaml").write_text(
        "set:\n  - {workload: pi, fault: none}\n  - {matrix: recovery, preset: smoke}\nbaseline: {revision: HEAD}\n"
        "repetitions: 10\nalerts: [{webhook: 'https://hooks.example.org/T0/secret'}]"
    )
    nights_command.check(None)
    said = capsys.readouterr().out
    assert "measures 2 configurations" in said and "in 10 pairs with" in said and "40 experiments, about " in said
    assert "tells webhook at hooks.example.org (worse, broken)" in said and "secret" not in said
    for line, refused in (
        ("baseline: {revision: v9.9}", "baseline.revision: git knows no 'v9.9' in this checkout"),
        (
            "baseline: {revision: HEAD}\nrepetitions: 4",
            "repetitions: 4 pairs can tell nothing of 1 configuration; give 6",
        ),
    ):
        (files / "nights" / "weekly.yaml").write_text(f"set: [{{workload: pi, fault: none}}]\n{line}")
        with pytest.raises(ConfigError, match=re.escape(refused)):
            nights_command.check("weekly")
    (files / "nights" / "weekly.yaml").write_text("set: [{rate: -1}]")
    with pytest.raises(ConfigError, match=r"weekly.yaml: set\[0\]: rate: "):
        nights_command.check("weekly")
    with pytest.raises(ConfigError, match="wekly: no night of this name; did you mean weekly"):
        nights_command.check("wekly")


def test_a_password_that_others_may_read_is_refused_before_a_night(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "password"
    secret.write_text("of the mail server")
    mail = {"to": "a@b.example", "from": "f@b.example", "server": "m.example:587", "password_file": str(secret)}
    (files / "nightly.yaml").write_text(json.dumps({"set": [{"rate": 100}], "alerts": [{"mail": mail}]}))
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match=r"password: has mode 0644, and others may not see it; chmod 0600"):
        nights_command.check("nightly")
    secret.unlink()
    with pytest.raises(ConfigError, match=r"mail\.password_file: .* is no file; write the password into one"):
        nights_command.check("nightly")
    secret.write_text("of the mail server")
    secret.chmod(0o600)
    nights_command.check("nightly")
    assert "mail to a@b.example" in capsys.readouterr().out


def test_an_alert_is_tried_out(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="alerts: nightly_regression tells nobody; write alerts into"):
        nights_command.test_alert(None, "test")
    with webhook() as (address, posted):
        (files / "nightly.yaml").write_text(json.dumps({"alerts": [{"when": ["worse"], "webhook": address}]}))
        nights_command.test_alert(None, "test")
        nights_command.test_alert("nightly", "worse")
        with pytest.raises(ConfigError, match="--kind broken: nobody asked for it"):
            nights_command.test_alert(None, "broken")
    assert [one["kind"] for one in posted] == ["test", "worse"] and all(
        one["title"].startswith("Try-out") for one in posted
    )
    assert posted[0]["figures"] == [] and "made up" in posted[0]["lines"][0]
    preview = posted[1]
    assert "1 figure worse" in preview["title"] or "figures worse" in preview["title"]
    assert (
        "made up" in preview["lines"][0] and "+22 %" in preview["lines"][1] and "2 nights in a row" in preview["text"]
    )
    assert preview["figures"][0]["finding"] == "worse" and preview["figures"][0]["change"][0] > 0.2
    with pytest.raises(ConfigError, match="--kind worst: is not known; did you mean worse"):
        nights_command.test_alert(None, "worst")
