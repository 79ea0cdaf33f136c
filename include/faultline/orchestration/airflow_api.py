"""Client of Airflow's REST API on loopback: trigger DAGs, follow runs, read tasks."""

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
    """Client that logs in as the installation's user, on first use and when the token expires."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._token: str | None = None
        self._token_until = 0.0
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def has_dag(self, dag_id: str, *, unpaused: bool = True) -> bool:
        """Return whether the DAG has been parsed and, if `unpaused`, is also not paused."""
        try:
            return not (self._call("GET", f"/api/v2/dags/{dag_id}")["is_paused"] and unpaused)
        except ConfigError:
            return False

    def import_errors(self) -> list[str]:
        """Return one line per DAG file that failed to import."""
        answer = self._call("GET", "/api/v2/importErrors")
        return [
            f"{item['filename']}: {item['stack_trace'].strip().splitlines()[-1]}" for item in answer["import_errors"]
        ]

    def trigger(
        self, dag_id: str, conf: dict[str, Any], *, run_id: str | None = None, logical_date: str | None = None
    ) -> str:
        """Start a run and return its id.

        Raises ConfigError with Airflow's message if `conf` is rejected.
        """
        body: dict[str, Any] = {"logical_date": logical_date, "conf": conf}
        if run_id:
            body["dag_run_id"] = run_id
        return str(self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return a run: state, note, conf, dates, …"""
        return dict(self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{_quote(run_id)}"))

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run: queued, running, success or failed."""
        return str(self.run(dag_id, run_id)["state"])

    def fail(self, dag_id: str, run_id: str) -> None:
        """Mark a queued or running run as failed, which ends its tasks."""
        self._call("PATCH", f"/api/v2/dags/{dag_id}/dagRuns/{_quote(run_id)}?update_mask=state", {"state": "failed"})

    def clear(self, dag_id: str, run_id: str) -> None:
        """Clear a finished run, so that all its tasks run again."""
        self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns/{_quote(run_id)}/clear", {"dry_run": False})

    def runs(self, dag_id: str, *states: str) -> list[dict[str, Any]]:
        """Return the runs of a DAG in the given states, newest first."""
        query = urllib.parse.urlencode([("state", state) for state in states] + [("order_by", "-run_after")])
        return list(self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns?{query}")["dag_runs"])

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return the task instances of a run: task_id, map_index, state, start_date, end_date, …"""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{_quote(run_id)}/taskInstances?limit=1000"
        return list(self._call("GET", path)["task_instances"])

    def set_note(self, dag_id: str, run_id: str, note: str) -> None:
        """Replace the note of a run: Markdown of at most 1,000 characters.

        Raises ConfigError if it is rejected.
        """
        path = f"/api/v2/dags/{dag_id}/dagRuns/{_quote(run_id)}?update_mask=note"
        self._call("PATCH", path, {"note": note})

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        if method == "POST":
            return self._request(method, path, body, {"Authorization": f"Bearer {self.token()}"})
        # Reading, and setting a note or state, is retried if the server is busy or its database is locked.
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
        """Return the bearer token."""
        if self._token is None or time.monotonic() > self._token_until:
            self._require_own_server()
            body = {"username": USER, "password": password(self._settings)}
            self._token = str(self._request("POST", "/auth/token", body, {})["access_token"])
            self._token_until = time.monotonic() + TOKEN_LIFETIME_S
        return self._token

    def is_own(self) -> bool:
        """Return whether the server at the port belongs to this installation."""
        try:
            self._require_own_server()
        except (FaultlineError, ValueError):  # another Airflow answers the unknown path with an HTML page
            return False
        return True

    def _require_own_server(self) -> None:
        """Raise InfrastructureError if the server at the port does not belong to this installation."""
        key, challenge = read_secrets(self._settings.secrets).proof, new_challenge()
        try:
            given = self._request("GET", f"{PROOF}/?challenge={challenge}", None, {})
        except ConfigError:
            given = ""  # unknown path
        require_proof(key, challenge, self._settings.ports["airflow"], str(given))

    def _request(self, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str]) -> Any:
        request = urllib.request.Request(
            self._settings.endpoints.airflow + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **headers},
        )
        # The owner of the port is checked on each request, because another process may take the port of a dead server.
        require_own_listener(self._settings)
        try:
            with self._opener.open(request, timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            detail = error.read().decode(errors="replace")
            if error.code < 500:
                raise ConfigError(
                    f"airflow: {method} {path.split('?')[0]} failed ({error.code}): {_error_detail(detail)}"
                ) from None
            raise InfrastructureError(
                f"airflow: {method} {path} failed ({error.code}); fix: see airflow-api-server.log"
            ) from None
        except OSError as error:
            raise InfrastructureError(
                f"airflow: request failed: {error} ({self._settings.endpoints.airflow})"
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
    """Note in a sweep's run that the sweep was stopped, unless the note says so already."""
    try:
        api = AirflowApi(settings)
        if not str(api.run(dag_id, run_id).get("note") or "").startswith(STOPPED_PREFIX):
            api.set_note(dag_id, run_id, f"{STOPPED_PREFIX} manually; trigger the same form to resume.")
    except (FaultlineError, OSError, ValueError, KeyError) as error:
        print(f"note: setting it failed for run {run_id} of {dag_id}: {error}")


def note_run(settings: Settings, context: Any, note: str) -> None:
    """Set the note of the task's run; print the reason if that fails."""
    if problem := write_note(settings, context["dag"].dag_id, context["run_id"], note):
        print(problem)


def write_note(settings: Settings, dag_id: str, run_id: str, note: str) -> str | None:
    """Set the note of a run through Airflow's API; return None, or why it failed.

    Never raises, because a note must not fail a run.
    """
    try:
        AirflowApi(settings).set_note(dag_id, run_id, note[:MAX_NOTE])
    except (FaultlineError, OSError, ValueError, KeyError) as error:
        return f"note: setting it failed for run {run_id} of {dag_id}: {error}"
    return None
