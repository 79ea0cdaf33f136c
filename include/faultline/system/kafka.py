"""Kafka clients: credentials for the broker of an installation or target, and end offsets."""

from __future__ import annotations

import contextlib
import importlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, Protocol

from faultline.system.errors import InfrastructureError
from faultline.system.journal import Instant
from faultline.system.secrets import HARNESS, MECHANISM, PROTOCOL, WORKLOAD, login_file, options_file, require_private
from faultline.system.settings import ENDPOINTS, INSTANCE, Settings, load_settings, targets_folder
from generators.kafka_credentials import read_credentials


def kafka_client(
    bootstrap: str, more: Mapping[str, Any] | None = None, *, secrets: Path | None = None, user: str = HARNESS
) -> dict[str, Any]:
    """Return the settings of a librdkafka client.

    `secrets`: the folder of the credential files; by default that of this installation, or of the target with this
    address. `more`: additional settings. Raises ConfigError if the credentials are missing or readable by others.
    """
    if secrets is None:
        secrets = _secrets_of(bootstrap)
    login = {} if secrets is None else _login(secrets, user)
    return {"bootstrap.servers": bootstrap, **login, **(more or {})}


def kafka_options(settings: Settings) -> dict[str, str]:
    """Return the options of Spark's Kafka source and sink except the address; none is a secret.

    The JVM reads the credentials from a file. Raises ConfigError as `kafka_client`.
    """
    if settings.endpoints.is_external:
        file = options_file(settings.logins)
        require_private(file)
        return {f"kafka.{name}": value for name, value in json.loads(file.read_text()).items()}
    if not _login(settings.logins, WORKLOAD):
        return {}
    return {"kafka.security.protocol": PROTOCOL, "kafka.sasl.mechanism": MECHANISM}


def _secrets_of(bootstrap: str) -> Path | None:
    settings = load_settings()
    if bootstrap in (settings.endpoints.kafka, settings.endpoints.kafka_detour):
        return settings.secrets
    for file in sorted(targets_folder(settings.home).glob(f"*/{ENDPOINTS}")):
        if json.loads(file.read_text())["kafka"] == bootstrap:
            return file.parent
    return None


def _login(secrets: Path, user: str) -> dict[str, str]:
    file = login_file(secrets, user)
    # If `up` has not run here, this installation has no broker that would need a login.
    if not file.exists() and not (secrets.parent / INSTANCE).exists() and not (secrets / ENDPOINTS).exists():
        return {}
    require_private(file)
    return read_credentials(file)


# ---- End offsets, read just before a fault without delaying it ----


# The request is sent this long before the fault. An answer takes 10 ms, or 100 ms if the engine uses all cores.
OFFSETS_LEAD_S = 0.2
OFFSETS_TIMEOUT_S = 5.0
FOLLOW_EVERY_S = 0.05
_WARM_UP_TIMEOUT_S = 0.5


class EndOffsets(Protocol):
    """Reader of the input topic's end offsets: {partition: offset}, partitions as strings."""

    def read(self, timeout_s: float) -> dict[str, int]:
        """Return the offsets. Raises InfrastructureError if the broker does not answer in time."""
        ...


class KafkaEndOffsets:
    """Reader of the end offsets of all partitions, in one request over a persistent connection."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions: list[int] = []
        self._admin: Any = None

    def read(self, timeout_s: float) -> dict[str, int]:
        """Return the end offsets. Raises InfrastructureError if the broker does not answer in time."""
        return self._list_offsets("latest", timeout_s)

    def earliest(self, timeout_s: float) -> dict[str, int]:
        """Return the first offsets: 0 unless records were deleted. Raises as `read` does."""
        return self._list_offsets("earliest", timeout_s)

    def _list_offsets(self, which: str, timeout_s: float) -> dict[str, int]:
        from confluent_kafka import KafkaException, TopicPartition

        # Loaded as Any: the package does not re-export OffsetSpec for type checkers.
        admin: Any = importlib.import_module("confluent_kafka.admin")

        try:
            if self._admin is None:
                self._admin = admin.AdminClient(
                    kafka_client(self._bootstrap, {"client.id": "faultline-conductor", "reconnect.backoff.ms": 500})
                )
            if not self._partitions:
                topics = self._admin.list_topics(self._topic, timeout=timeout_s).topics
                self._partitions = sorted(topics[self._topic].partitions)
                if not self._partitions:
                    raise InfrastructureError(f"topics.input: {self._topic} does not exist on the broker")
            spec = getattr(admin.OffsetSpec, which)()
            wanted = {TopicPartition(self._topic, number): spec for number in self._partitions}
            answers = self._admin.list_offsets(wanted, request_timeout=timeout_s)
            return {str(key.partition): int(future.result(timeout_s).offset) for key, future in answers.items()}
        except (KafkaException, TimeoutError) as error:
            raise InfrastructureError(f"kafka: no {which} offsets of {self._topic}: {error or 'no answer'}") from None


Reading = tuple[dict[str, int], Instant]


@contextlib.contextmanager
def poll_offsets(reader: EndOffsets, wanted: bool) -> Iterator[Callable[[Instant], Reading | None]]:
    """Read the offsets repeatedly in a thread inside the block, if `wanted`.

    Yields a function that returns the newest reading that was answered before a given instant; None if there is none.
    """
    readings: list[Reading] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            with contextlib.suppress(InfrastructureError):
                readings.append((reader.read(OFFSETS_TIMEOUT_S), Instant.now()))
            stop.wait(FOLLOW_EVERY_S)

    def newest(before: Instant) -> Reading | None:
        earlier = [reading for reading in list(readings) if reading[1].mono_ns <= before.mono_ns]
        return earlier[-1] if earlier else None

    thread = threading.Thread(target=run, name="end-offsets-follow", daemon=True)
    if wanted:
        thread.start()
    try:
        yield newest
    finally:
        stop.set()


class OffsetsWatch:
    """Reader of end offsets in a thread, so that a slow broker cannot delay the fault.

    The request is sent OFFSETS_LEAD_S before `due_ns`. If that is in the future, another request is sent at once, to
    establish the connection.
    """

    def __init__(self, reader: EndOffsets, due_ns: int) -> None:
        self._reader, self._due_ns = reader, due_ns
        self._answer: Future[Reading] = Future()
        threading.Thread(target=self._run, name="end-offsets", daemon=True).start()

    def result(self, timeout_s: float) -> Reading | None:
        """Return the offsets and the time of the answer; None if pending. Raises InfrastructureError."""
        if not wait([self._answer], timeout_s).done:
            return None
        if error := self._answer.exception():
            raise InfrastructureError(str(error) or type(error).__name__)
        return self._answer.result()

    def _run(self) -> None:
        try:
            if self._remaining_s() > 0:
                # Only the second reading counts; if the failure persists, that one reports it.
                with contextlib.suppress(InfrastructureError):
                    self._reader.read(_WARM_UP_TIMEOUT_S)
                time.sleep(max(0.0, self._remaining_s()))
            self._answer.set_result((self._reader.read(OFFSETS_TIMEOUT_S), Instant.now()))
        except Exception as error:
            self._answer.set_exception(error)

    def _remaining_s(self) -> float:
        """Return the seconds until the request is due."""
        return (self._due_ns - time.monotonic_ns()) / 1e9 - OFFSETS_LEAD_S
