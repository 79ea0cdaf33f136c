"""Alerts about nightly runs, sent by Airflow notifiers: webhook, Slack, mail, or any class of a nightly file."""

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
# Kind of a test alert.
TEST = "test"


class WebhookNotifier(BaseNotifier):
    """Notifier that posts an alert as JSON.

    The keys are `kind`, `dag_id`, `night`, `title`, `lines`, `link`, `figures`, and `text` with the whole alert.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address

    def body(self, alert: AlertContent) -> dict[str, Any]:
        """Return the posted JSON."""
        return {"text": alert.text, **asdict(alert)}

    def notify(self, context: Any) -> None:
        """Post the alert.

        Raises InfrastructureError if that fails.
        """
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
    """Notifier that posts an alert to an incoming webhook of Slack."""

    def body(self, alert: AlertContent) -> dict[str, Any]:
        """Return Slack's `text` field; `<…>` is escaped, because Slack would read it as a link or mention."""
        lines = "\n".join(f"• {_escape_slack(line)}" for line in alert.lines)
        return {"text": f"*{_escape_slack(alert.title)}*\n{lines}\n<{_escape_slack(alert.link)}|Results>"}


def send_alert(alert: AlertContent, plans: Sequence[AlertPlan]) -> list[str]:
    """Send the alert by all plans that request its kind (a test alert by all); return one line per delivery.

    Tries all; then raises InfrastructureError naming the plans that failed.
    """
    sent, failed = [], []
    for plan in plans:
        if alert.kind != TEST and alert.kind not in plan.when:
            continue
        try:
            notifier_of(plan, alert).notify({"alert": alert})
            sent.append(f"{alert.kind}: {plan.text}")
        except Exception as error:  # the other notifiers must still be tried
            failed.append(f"{plan.text}: {error}")
    if failed:
        raise InfrastructureError(f"alerts: delivery failed: {'; '.join(failed)}")
    return sent


def notifier_of(plan: AlertPlan, alert: AlertContent) -> BaseNotifier:
    """Return the notifier of one plan.

    Raises ConfigError for an unusable class.
    """
    if plan.way == "webhook":
        return WebhookNotifier(plan.target)
    if plan.way == "slack":
        return SlackNotifier(plan.target)
    if plan.way == "mail":
        return _mail(plan.target, alert)
    from airflow.sdk.module_loading import import_string

    try:
        notifier = import_string(plan.target["class"])(**plan.target["arguments"])
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"notifier: got {plan.target['class']}; import failed: {error}") from None
    if not isinstance(notifier, BaseNotifier):
        raise ConfigError(f"notifier: got {plan.target['class']}; expected a subclass of Airflow's BaseNotifier")
    notifier.render_template_fields({"alert": alert})
    return notifier


def _escape_slack(text: str) -> str:
    """Return text without Slack markup."""
    return html.escape(one_line(text), quote=False)


def _mail(target: Mapping[str, Any], alert: AlertContent) -> BaseNotifier:
    """Return Airflow's mail notifier, with a Connection that only this process has."""
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    host, port = mail_server(target)
    tls = bool(target.get("tls", True))
    # The password is in a file, because child processes would inherit a variable.
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
        # A line break would start another header.
        subject=one_line(alert.title),
        html_content=f"<p>{html.escape(alert.title)}</p><ul>{lines}</ul><p><a href='{link}'>{link}</a></p>",
        smtp_conn_id="faultline_mail",
    )
