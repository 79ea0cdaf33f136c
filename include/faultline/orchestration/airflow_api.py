"""A small client of Airflow's REST API on loopback: trigger a DAG, follow its run, read its tasks."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_fixed

from faultline.installation.airflow import USER, password
from faultline.installation.server_proof import PREFIX as PROOF
from faultline.installation.server_proof import new_challenge, require_own_listener, require_proof
from faultline.reports.notes import MAX_NOTE, STOPPED_PREFIX
from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.system.secrets import read_secrets
from faultline.system.settings import Settings

FINISHED = frozenset({"success", "failed"})
TOKEN_LIFETIME_S = 3600.0
RETRY_LIMIT_S = 60.0


class AirflowApi:
    """Calls as the one user of this installation; logs in on the first call and again when the token ages."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._token: str | None = None
        self._token_until = 0.0
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def has_dag(self, dag_id: str, *, unpaused: bool = True) -> bool:
        """Whether the DAG has been parsed, and, with `unpaused`, is switched on."""
        try:
            return not (self._call("GET", f"/api/v2/dags/{dag_id}")["is_paused"] and unpaused)
        except ConfigError:
            return False

    def import_errors(self) -> list[str]:
        """One line a DAG file that could not be read."""
        answer = self._call("GET", "/api/v2/importErrors")
        return [
            f"{item['filename']}: {item['stack_trace'].strip().splitlines()[-1]}" for item in answer["import_errors"]
        ]

    def trigger(
        self, dag_id: str, conf: dict[str, Any], *, run_id: str | None = None, logical_date: str | None = None
    ) -> str:
        """Starts a run and returns its id. Raises ConfigError with Airflow's own words when `conf` is refused."""
        body: dict[str, Any] = {"logical_date": logical_date, "conf": conf}
        if run_id:
            body["dag_run_id"] = run_id
        return str(self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """A run: its state, note, conf, dates, …"""
        return dict(self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{_quote(run_id)}"))

    def run_state(self, dag_id: str, run_id: str) -> str:
        """State of a run: queued, running, success or failed."""
        return str(self.run(dag_id, run_id)["state"])

    def fail(self, dag_id: str, run_id: str) -> None:
        """Ends a run that is queued or running, as failed, and the tasks that it has at work."""
        self._call("PATCH", f"/api/v2/dags/{dag_id}/dagRuns/{_quote(run_id)}?update_mask=state", {"state": "failed"})

    def clear(self, dag_id: str, run_id: str) -> None:
        """Runs all tasks of a run that is over once more."""
        self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns/{_quote(run_id)}/clear", {"dry_run": False})

    def runs(self, dag_id: str, *states: str) -> list[dict[str, Any]]:
        """Runs of a DAG in the given states, newest first."""
        query = urllib.parse.urlencode([("state", state) for state in states] + [("order_by", "-run_after")])
        return list(self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns?{query}")["dag_runs"])

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Task instances of a run: task_id, map_index, state, start_date, end_date, …"""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{_quote(run_id)}/taskInstances?limit=1000"
        return list(self._call("GET", path)["task_instances"])

    def set_note(self, dag_id: str, run_id: str, note: str) -> None:
        """Replaces the note of a run, Markdown of at most 1,000 characters. Raises ConfigError when it is refused."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{_quote(run_id)}?update_mask=note"
        self._call("PATCH", path, {"note": note})

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        if method == "POST":
            return self._request(method, path, body, {"Authorization": f"Bearer {self.token()}"})
        # A look may be repeated, and a note or state set once more: the server is busy, or its database locked.
        for attempt in Retrying(
            retry=retry_if_exception_type(InfrastructureError),
            stop=stop_after_attempt(2) if method == "PATCH" else stop_after_delay(RETRY_LIMIT_S),
            wait=wait_fixed(1),
            reraise=True,
        ):
            with attempt:
                return self._request(method, path, body, {"Authorization": f"Bearer {self.token()}"})
        return None

    def token(self) -> str:
        """The bearer token of the one user."""
        if self._token is None or time.monotonic() > self._token_until:
            self._require_own_server()
            body = {"username": USER, "password": password(self._settings)}
            self._token = str(self._request("POST", "/auth/token", body, {})["access_token"])
            self._token_until = time.monotonic() + TOKEN_LIFETIME_S
        return self._token

    def is_own(self) -> bool:
        """Whether this installation's server answers, and not another one at the same port."""
        try:
            self._require_own_server()
        except (FaultlineError, ValueError):  # Airflow answers an address that it does not have with a page
            return False
        return True

    def _require_own_server(self) -> None:
        """Raises InfrastructureError when whoever answers cannot show that it is this installation's."""
        key, challenge = read_secrets(self._settings.secrets).proof, new_challenge()
        try:
            given = self._request("GET", f"{PROOF}/?challenge={challenge}", None, {})
        except ConfigError:
            given = ""  # it has no such address
        require_proof(key, challenge, self._settings.ports["airflow"], str(given))

    def _request(self, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str]) -> Any:
        request = urllib.request.Request(
            self._settings.endpoints.airflow + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **headers},
        )
        # Also later, when it is known: a server that died leaves its port to whoever takes it.
        require_own_listener(self._settings)
        try:
            with self._opener.open(request, timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            detail = error.read().decode(errors="replace")
            if error.code < 500:
                raise ConfigError(
                    f"airflow: {method} {path.split('?')[0]} refused ({error.code}): {_error_detail(detail)}"
                ) from None
            raise InfrastructureError(
                f"airflow: {method} {path} failed ({error.code}); see airflow-api-server.log"
            ) from None
        except OSError as error:
            raise InfrastructureError(
                f"airflow: does not answer at {self._settings.endpoints.airflow} ({error})"
            ) from None
        return json.loads(text) if text else None


def _quote(run_id: str) -> str:
    return urllib.parse.quote(run_id, safe="")


def _error_detail(text: str) -> str:
    try:
        detail = json.loads(text).get("detail", text)
    except (ValueError, AttributeError):
        detail = text
    return detail if isinstance(detail, str) else json.dumps(detail)


# ---- Notes of runs ----


def note_stopped(settings: Settings, dag_id: str, run_id: str) -> None:
    """Says in the note of a sweep that somebody stopped it, unless that stands there already."""
    try:
        api = AirflowApi(settings)
        if not str(api.run(dag_id, run_id).get("note") or "").startswith(STOPPED_PREFIX):
            api.set_note(dag_id, run_id, f"{STOPPED_PREFIX} by hand; the same form goes on from there.")
    except (FaultlineError, OSError, ValueError, KeyError) as error:
        print(f"no note for the run {run_id} of {dag_id}: {error}")


def note_run(settings: Settings, context: Any, note: str) -> None:
    """Sets the note of the run that a task belongs to; why it could not be set goes into the task's log."""
    if problem := write_note(settings, context["dag"].dag_id, context["run_id"], note):
        print(problem)


def write_note(settings: Settings, dag_id: str, run_id: str, note: str) -> str | None:
    """Sets the note of a run through Airflow's API. Returns None, or why it could not be set.

    It never raises: a note is not worth a run.
    """
    try:
        AirflowApi(settings).set_note(dag_id, run_id, note[:MAX_NOTE])
    except (FaultlineError, OSError, ValueError, KeyError) as error:
        return f"no note for the run {run_id} of {dag_id}: {error}"
    return None
