"""The checks of a target, each told in a line: what would stop an experiment is found before it starts."""

from __future__ import annotations

import re
from functools import partial
from importlib.metadata import version
from typing import Any

from faultline.installation.doctor import Check
from faultline.installation.java import find_java
from faultline.installation.targets import kafka_preflight, machines, spark_preflight
from faultline.installation.targets.credential_files import FOUND_WELL, SAID
from faultline.installation.targets.machines import PREFIX
from faultline.system.errors import FaultlineError
from faultline.system.files import write_private
from faultline.system.settings import Settings
from faultline.system.target_registry import Target, endpoints_at
from faultline.system.text import Say

_OF_ATTEMPT = re.compile(rf"{PREFIX}(\d{{8}}T\d{{6}}Z-[0-9a-f]{{6}})-.*")


def look(settings: Settings, target: Target, say: Say) -> FaultlineError | None:
    """Makes every check, and says a line for each; what hangs on something that failed is left out.

    Returns the first failure; None when all is well, which is noted.
    """
    first: FaultlineError | None = None
    here = settings.at(endpoints_at(settings, target.name))
    for checks in checks_of(here, target):
        for check in checks:
            found, error = check.found()
            say(f"{check.name}: {'' if error is None else 'NO: '}{found['detail']}")
            if error is not None:
                first = first or error
                break
    if first is None:
        write_private(here.logins / FOUND_WELL, _looked_at(here))
    return first


def require_well(settings: Settings, target: Target, say: Say) -> None:
    """Raises the first thing that is wrong. What takes long is only looked at where the Connections, or the Spark that
    is installed here, were changed since all was found well."""
    here = settings.at(endpoints_at(settings, target.name))
    noted = here.logins / FOUND_WELL
    if not noted.exists() or noted.read_text() != _looked_at(here):
        if error := look(settings, target, say):
            raise error
        return
    for checks in checks_of(here, target):
        for check in checks:
            if not check.slow:
                check.look()


def _looked_at(here: Settings) -> str:
    """What the Connections say, and what runs experiments there."""
    return f"{(here.logins / SAID).read_text()} {version('pyspark')}"


def checks_of(here: Settings, target: Target) -> list[list[Check]]:
    """In groups, in each of which a check hangs on those before it."""
    broker = kafka_preflight.TargetBroker(here.endpoints.kafka, here.logins, target.kafka)
    connection, installed = target.spark, version("pyspark")
    state: dict[str, Any] = {}

    def rights() -> str:
        return f"a topic was made, described, filled, read and deleted; {kafka_preflight.worked(broker)}"

    def master() -> str:
        state.update(spark_preflight.alive(here, connection))
        return f"{here.endpoints.engine} has {len(spark_preflight.workers_of(state))} living workers"

    def probe() -> str:
        java = find_java(here.home / "java.json").home
        return spark_preflight.probed(
            here, connection, target.storage, java, max(1, len(spark_preflight.workers_of(state)))
        )

    of_spark = [
        Check("spark", master),
        Check("spark version", lambda: spark_preflight.versions(here, connection, state, installed)),
    ]  # fmt: skip
    if not here.endpoints.engine_ui:
        of_spark = [Check("spark", str, f"{here.endpoints.engine} has no page that tells its workers and versions")]
    return [
        [
            Check("kafka", lambda: kafka_preflight.reached(broker)),
            Check("kafka login", lambda: kafka_preflight.logged_in(broker)),
            Check("kafka rights", rights, slow=True),
            Check(
                "kafka topics",
                lambda: kafka_preflight.others_topics(broker, lambda name: _is_own(here, name)),
                slow=True,
            ),
        ],
        [Check("storage", lambda: machines.looked_at(here.endpoints, target.storage))],
        *(
            [Check(f"host {name}", partial(machines.greeted, host, target.host(name)))]
            for name, host in here.endpoints.hosts.items()
        ),
        [*of_spark, Check("spark login and storage", probe, slow=True)],
    ]


def _is_own(here: Settings, topic: str) -> bool:
    match = _OF_ATTEMPT.fullmatch(topic)
    return match is not None and (here.attempts / match.group(1)).exists()
