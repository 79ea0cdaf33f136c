"""Client of the Spark driver's REST API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fault.process_sampler import RoleRule
from faultline.system.journal import Line
from faultline.system.process_tags import load_option, run_option
from faultline.system.socket_owner import fetch


def fetch_list(url: str) -> list[dict[str, Any]]:
    """Return a JSON array from Spark's REST API; empty if the driver does not answer."""
    value: Any = fetch(url, timeout_s=1.0)
    return value if isinstance(value, list) else []


EXECUTOR_MAIN = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class DriverSampler:
    """Sampler of one attempt's driver; a restarted driver is another application at the same address."""

    child_roles: Mapping[str, str] = MappingProxyType({"executors": "python_workers"})

    def __init__(self, attempt: str, driver_ui: str) -> None:
        self.rules: Sequence[RoleRule] = (
            RoleRule("generator", EXECUTOR_MAIN, load_option(attempt)),
            RoleRule("executors", EXECUTOR_MAIN, run_option(attempt)),
        )
        self._applications = f"{driver_ui}/api/v1/applications"
        self._app_id: str | None = None

    def sample(self) -> Iterable[Line]:
        if self._app_id is None:
            applications = fetch_list(self._applications)
            self._app_id = applications[0]["id"] if applications else None
        if self._app_id is None:
            return
        executors = fetch_list(f"{self._applications}/{self._app_id}/allexecutors")
        if executors:
            yield {"kind": "executors", "app_id": self._app_id, "executors": executors}
        else:
            self._app_id = None  # a restarted driver is another application
