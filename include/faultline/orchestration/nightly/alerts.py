"""Alerts of a night, by notifiers of Airflow's: webhook, Slack, mail, or any that a night's file names."""

from __future__ import annotations

import html
import json
import os
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier
from tenacity import Retrying, stop_after_attempt, wait_fixed

from faultline.experiment.alert_plan import mail_server, password_file
from faultline.reports.notes import AlertContent
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.text import one_line

if TYPE_CHECKING:
    from faultline.experiment.alert_plan import AlertPlan

TIMEOUT_S = 10.0
POST_ATTEMPTS = 3
# What a try-out is called, in place of one of the kinds.
TEST = "test"


class WebhookNotifier(BaseNotifier):
    """Posts an alert as JSON: kind, dag_id, night, title, lines, link, figures, and all in words as `text`."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address

    def body(self, alert: AlertContent) -> dict[str, Any]:
        """What is posted."""
        return {"text": alert.text, **asdict(alert)}

    def notify(self, context: Any) -> None:
        """Posts it. Raises InfrastructureError when nobody takes it."""
        content = json.dumps(self.body(context["alert"]), default=str).encode()
        request = urllib.request.Request(
            self.address, data=content, headers={"Content-Type": "application/json"}, method="POST"
        )
        try:
            for attempt in Retrying(stop=stop_after_attempt(POST_ATTEMPTS), wait=wait_fixed(1), reraise=True):
                with attempt, urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                    answer.read()
        except OSError as error:
            raise InfrastructureError(f"webhook: {type(error).__name__}: {error}") from None


class SlackNotifier(WebhookNotifier):
    """Posts an alert to an incoming webhook of Slack's."""

    def body(self, alert: AlertContent) -> dict[str, Any]:
        """The one field that Slack takes, which reads `<…>` as a link, or as somebody to wake."""
        lines = "\n".join(f"• {_escape_slack(line)}" for line in alert.lines)
        return {"text": f"*{_escape_slack(alert.title)}*\n{lines}\n<{_escape_slack(alert.link)}|Results>"}


def send_alert(alert: AlertContent, plans: Sequence[AlertPlan]) -> list[str]:
    """Tells everybody who asked for this kind, or for anything where it is a try-out; a line for each who was told.

    Raises InfrastructureError naming those who could not be reached, after all were tried.
    """
    told, lost = [], []
    for plan in plans:
        if alert.kind != TEST and alert.kind not in plan.when:
            continue
        try:
            notifier_of(plan, alert).notify({"alert": alert})
            told.append(f"{alert.kind}: {plan.text}")
        except Exception as error:  # whatever a notifier raises, the next one is told all the same
            lost.append(f"{plan.text}: {error}")
    if lost:
        raise InfrastructureError(f"alerts: not delivered to {'; '.join(lost)}")
    return told


def notifier_of(plan: AlertPlan, alert: AlertContent) -> BaseNotifier:
    """The notifier for one alert. Raises ConfigError for a class that cannot be used."""
    if plan.way == "webhook":
        return WebhookNotifier(plan.target)
    if plan.way == "slack":
        return SlackNotifier(plan.target)
    if plan.way == "mail":
        return _mail(plan.target, alert)
    from airflow.sdk.module_loading import import_string

    try:
        made = import_string(plan.target["class"])(**plan.target["arguments"])
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"notifier: {plan.target['class']} cannot be used ({error})") from None
    if not isinstance(made, BaseNotifier):
        raise ConfigError(f"notifier: {plan.target['class']} is no notifier of Airflow's; name one that is")
    made.render_template_fields({"alert": alert})
    return made


def _escape_slack(text: str) -> str:
    """A text in which Slack sees nothing but text."""
    return html.escape(one_line(text), quote=False)


def _mail(target: Mapping[str, Any], alert: AlertContent) -> BaseNotifier:
    """Airflow's own, over a connection that only this process knows."""
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    host, port = mail_server(target)
    tls = bool(target.get("tls", True))
    # From a file, since every child of a service reads the service's environment.
    password = file.read_text().strip() if (file := password_file(target)) else ""
    connection = {
        "conn_type": "smtp", "host": host, "port": port, "login": target.get("user"),
        "password": password or None, "extra": {"disable_ssl": True, "disable_tls": not tls, "timeout": int(TIMEOUT_S)},
    }  # fmt: skip
    os.environ["AIRFLOW_CONN_FAULTLINE_MAIL"] = json.dumps(connection)
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in alert.lines)
    link = html.escape(alert.link)
    return SmtpNotifier(
        to=target["to"],
        from_email=target["from"],
        # A line break would begin another header.
        subject=one_line(alert.title),
        html_content=f"<p>{html.escape(alert.title)}</p><ul>{lines}</ul><p><a href='{link}'>{link}</a></p>",
        smtp_conn_id="faultline_mail",
    )
