"""Hooks of an experiment whose steps are tasks of an external Airflow; all answers come from the task's request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from faultline.engines.runtime import Program
from faultline.engines.spark.submission import SparkProgram, spark_submit_command
from faultline.installation.targets.connection_specs import ConnectionSpec
from faultline.lifecycle.hooks import PlainHooks
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import Settings
from faultline.system.ssh_hosts import check_ssh_host, ssh_hosts
from faultline.system.target_registry import Target


class ExternalHooks(PlainHooks):
    """Implementation of `faultline.lifecycle.context.Hooks`, from the task's request."""

    def __init__(self, settings: Settings, request: Mapping[str, Any], cancel: Path) -> None:
        super().__init__(settings)
        self._request, self._cancel = request, cancel

    def _connection(self, conn_id: str) -> ConnectionSpec:
        text = self._request["connections"].get(conn_id)
        name = f"{self._request['prefix']}{conn_id}"
        if text is None:
            raise ConfigError(f"Connection {name}: missing; fix: run ./faultline airflow install again")
        found = json.loads(text)
        extra = found.get("extra") or {}
        known = {key: found.get(key) for key in ("host", "port", "login", "password")}
        extra = json.loads(extra) if isinstance(extra, str) else extra
        return ConnectionSpec(name, found.get("conn_type") or "", **known, extra=extra)

    def kafka_admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient(dict(self._connection("kafka_default").extra))

    def command(self, program: Program) -> list[str]:
        if not isinstance(program, SparkProgram):
            return list(program.command)
        if program.master is not None:
            return spark_submit_command(program, program.master)
        spec = self._connection("spark_default")
        master = f"{spec.host}:{spec.port}" if spec.port else str(spec.host)
        if not master.startswith("spark://"):
            raise InfrastructureError(
                f"Connection {spec.id}: not a Spark master; fix: run ./faultline airflow install again"
            )
        return spark_submit_command(program, master)

    def _submit(self, program: SparkProgram) -> None:
        super()._submit(replace(program, master=self._connection("spark_local").host))

    def hosts(self) -> Mapping[str, Mapping[str, Any]]:
        found = {}
        for name in ssh_hosts(self._settings):
            spec = self._connection(f"ssh_{name}")
            address = {"host": spec.host, "port": spec.port, "user": spec.login}
            found[name] = check_ssh_host(f"Connection {spec.id}", {**address, **spec.extra})
        return found

    def store_target(self, target: Target) -> None:
        # The Connections of `target add` are on this host; the external Airflow does not have them.
        from faultline.orchestration.connections import import_target

        import_target(self._settings, target)

    def is_run_active(self, run_id: str) -> bool:
        return run_id != self._request["run_id"] and run_id not in self._request.get("dead", ())

    def is_cancelled(self) -> bool:
        return self._cancel.exists()
