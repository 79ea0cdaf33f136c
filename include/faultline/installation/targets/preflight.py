"""Preflight checks of a target (an external cluster) before an experiment starts; each reports one line."""

from __future__ import annotations

import re
from functools import partial
from importlib.metadata import version
from typing import Any

from faultline.installation.doctor import Check
from faultline.installation.java import find_java
from faultline.installation.targets import kafka_preflight, machines, spark_preflight
from faultline.installation.targets.credential_files import CHECKED_DIGEST, SPECS_DIGEST
from faultline.installation.targets.machines import PREFIX
from faultline.system.errors import FaultlineError
from faultline.system.files import write_private
from faultline.system.settings import Settings
from faultline.system.target_registry import Target, endpoints_at
from faultline.system.text import Progress

_ATTEMPT_TOPIC = re.compile(rf"{PREFIX}(\d{{8}}T\d{{6}}Z-[0-9a-f]{{6}})-.*")


def run_preflight(settings: Settings, target: Target, progress: Progress) -> FaultlineError | None:
    """Run every check and report a line for each; skip checks that depend on a failed one.

    Returns the first failure, or None; success is recorded.
    """
    first: FaultlineError | None = None
    here = settings.for_target(endpoints_at(settings, target.name))
    for checks in build_checks(here, target):
        for check in checks:
            finding, error = check.result()
            progress(f"{check.name}: {'' if error is None else 'FAILED: '}{finding['detail']}")
            if error is not None:
                first = first or error
                break
    if first is None:
        write_private(here.logins / CHECKED_DIGEST, _preflight_digest(here))
    return first


def require_preflight(settings: Settings, target: Target, progress: Progress) -> None:
    """Run the preflight checks and raise the first failure.

    Slow checks run only if the Connections or the installed Spark changed since the last success.
    """
    here = settings.for_target(endpoints_at(settings, target.name))
    checked = here.logins / CHECKED_DIGEST
    if not checked.exists() or checked.read_text() != _preflight_digest(here):
        if error := run_preflight(settings, target, progress):
            raise error
        return
    for checks in build_checks(here, target):
        for check in checks:
            if not check.is_slow:
                check.run()


def _preflight_digest(here: Settings) -> str:
    """Return a digest of the Connections and the installed Spark."""
    return f"{(here.logins / SPECS_DIGEST).read_text()} {version('pyspark')}"


def build_checks(here: Settings, target: Target) -> list[list[Check]]:
    """Return groups of checks; each check depends on the earlier ones of its group."""
    broker = kafka_preflight.TargetBroker(here.endpoints.kafka, here.logins, target.kafka)
    connection, installed = target.spark, version("pyspark")
    state: dict[str, Any] = {}

    def rights() -> str:
        return f"topic created, described, written, read and deleted; {kafka_preflight.check_rights(broker)}"

    def master() -> str:
        state.update(spark_preflight.check_master(here, connection))
        return f"{here.endpoints.engine} has {len(spark_preflight.workers_of(state))} live workers"

    def probe() -> str:
        java = find_java(here.home / "java.json").home
        return spark_preflight.run_probe(
            here, connection, target.storage, java, max(1, len(spark_preflight.workers_of(state)))
        )

    spark_checks = [
        Check("spark", master),
        Check("spark version", lambda: spark_preflight.check_versions(here, connection, state, installed)),
    ]  # fmt: skip
    if not here.endpoints.engine_ui:
        spark_checks = [Check("spark", str, f"{here.endpoints.engine}: no page for workers and versions")]
    return [
        [
            Check("kafka", lambda: kafka_preflight.check_connection(broker)),
            Check("kafka login", lambda: kafka_preflight.check_login(broker)),
            Check("kafka rights", rights, is_slow=True),
            Check(
                "kafka topics",
                lambda: kafka_preflight.check_foreign_topics(broker, lambda name: _is_own(here, name)),
                is_slow=True,
            ),
        ],
        [Check("storage", lambda: machines.check_storage(here.endpoints, target.storage))],
        *(
            [Check(f"host {name}", partial(machines.check_host, host, target.host(name)))]
            for name, host in here.endpoints.hosts.items()
        ),
        [*spark_checks, Check("spark login and storage", probe, is_slow=True)],
    ]


def _is_own(here: Settings, topic: str) -> bool:
    match = _ATTEMPT_TOPIC.fullmatch(topic)
    return match is not None and (here.attempts / match.group(1)).exists()
