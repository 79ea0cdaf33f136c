"""One look at a target after another, each told in a line: what would stop an experiment is found before it starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from faultline.installation.java import find_java
from faultline.installation.targets import kafka, spark, ssh, storage
from faultline.installation.targets.logins import FOUND_WELL, SAID
from faultline.system.errors import FaultlineError
from faultline.system.files import write_private
from faultline.system.settings import Settings
from faultline.system.target import Target, endpoints_at
from faultline.system.text import Say

Look = tuple[str, Callable[[], object]]
_OF_ATTEMPT = re.compile(rf"{kafka.PREFIX}(\d{{8}}T\d{{6}}Z-[0-9a-f]{{6}})-.*")


def look(settings: Settings, target: Target, say: Say) -> FaultlineError | None:
    """Looks at everything, and says a line for each; what hangs on something that failed is left out.

    Returns the first failure; None when all is well, which is noted.
    """
    first: FaultlineError | None = None
    here = settings.at(endpoints_at(settings, target.name))
    hosts = ([one] for one in _at_hosts(here, target))
    for looks in (_at_kafka(here, target), _at_storage(here, target), *hosts, _at_spark(here, target)):
        for what, one in looks:
            try:
                say(f"{what}: {one()}")
            except FaultlineError as error:
                say(f"{what}: NO: {error}")
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
    for _, one in _quick(here, target):
        one()


def _looked_at(here: Settings) -> str:
    """What the Connections say, and what runs experiments there."""
    return f"{(here.logins / SAID).read_text()} {version('pyspark')}"


def _quick(here: Settings, target: Target) -> Iterator[Look]:
    """What may change between two experiments, and is seen at once."""
    yield from list(_at_kafka(here, target))[:2]
    yield from _at_storage(here, target)
    yield from _at_hosts(here, target)
    *quick, _ = _at_spark(here, target)
    yield from quick


def _at_kafka(here: Settings, target: Target) -> Iterator[Look]:
    broker = kafka.Broker(here.endpoints.kafka, here.logins, target.kafka)
    yield "kafka", lambda: kafka.reached(broker)
    yield "kafka login", lambda: kafka.logged_in(broker)
    yield "kafka rights", lambda: f"a topic was made, described, filled, read and deleted; {kafka.worked(broker)}"
    yield "kafka topics", lambda: kafka.others_topics(broker, lambda name: _is_own(here, name))


def _is_own(here: Settings, topic: str) -> bool:
    match = _OF_ATTEMPT.fullmatch(topic)
    return match is not None and (here.attempts / match.group(1)).exists()


def _at_storage(here: Settings, target: Target) -> Iterator[Look]:
    yield "storage", lambda: storage.looked_at(here.endpoints, target.storage)


def _at_hosts(here: Settings, target: Target) -> Iterator[Look]:
    for name, host in here.endpoints.hosts.items():
        yield f"host {name}", partial(ssh.greeted, host, target.host(name))


def _at_spark(here: Settings, target: Target) -> Iterator[Look]:
    connection, installed = target.spark, version("pyspark")
    state: dict[str, Any] = {}

    def master() -> str:
        state.update(spark.alive(here, connection))
        return f"{here.endpoints.engine} has {len(spark.workers_of(state))} living workers"

    def probe() -> str:
        java: Path = find_java(here.home / "java.json").home
        return spark.probed(here, connection, target.storage, java, max(1, len(spark.workers_of(state))))

    if here.endpoints.engine_ui:
        yield "spark", master
        yield "spark version", lambda: spark.versions(here, connection, state, installed)
    else:
        yield "spark", lambda: f"{here.endpoints.engine} has no page that tells its workers and versions: not known"
    yield "spark login and storage", probe
