"""Target lock: one experiment at a time on a target (an external cluster), across installations and Airflow instances.

The target's broker keeps the lock. Each experiment joins a consumer group on a topic with one partition, and holds the
lock while the partition is assigned to it. Assignment is cooperative-sticky, so a new member does not take the
partition over. When the holder leaves or its session expires, the broker assigns the partition to a waiting member. So
there is no lock file to clean up, and no dependence on synchronised clocks.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from faultline.installation.targets.kafka_preflight import LOCK_TOPIC, REQUEST_S, TargetBroker
from faultline.installation.targets.machines import PREFIX
from faultline.system.errors import InfrastructureError
from faultline.system.text import one_line

# A holder that is silent for this long loses the lock.
SESSION_S = 30.0
POLL_S = 0.25


class TargetLock:
    """Lock on a target, with `take` and `holder` as in `system.locks.MachineLock`; a silent holder loses the lock.

    `attempt_id`: shown to waiting experiments.
    """

    def __init__(self, broker: TargetBroker, attempt_id: str, *, session_s: float = SESSION_S) -> None:
        self._broker, self._attempt_id, self._session_s = broker, attempt_id, session_s
        self._consumer: Any = None
        self._held = self._lost = False

    def take(self, *, wait_s: float, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Wait for the lock. Returns without it once `is_cancelled()` is true.

        Raises InfrastructureError, naming the holder, after `wait_s` seconds.
        """
        deadline = time.monotonic() + wait_s
        self._consumer = self._consumer or self._join()
        while not self._held and not is_cancelled():
            self._poll(POLL_S)
            if not self._held and time.monotonic() > deadline:
                holder = self.holder() or "an unknown experiment"
                raise InfrastructureError(
                    f"target: held by {holder} (Connection {self._broker.connection}); fix: wait for it, or stop it"
                )

    def holder(self) -> str | None:
        """Return the name and host of the experiment that holds the lock; None if free or unknown."""
        from confluent_kafka import KafkaException

        admin: Any = importlib.import_module("confluent_kafka.admin")
        # Keep a reference: without one the client is garbage-collected before it answers, and the request fails.
        client = admin.AdminClient(self._broker.settings())
        try:
            members = (
                client.describe_consumer_groups([LOCK_TOPIC], request_timeout=REQUEST_S)[LOCK_TOPIC].result().members
            )
        except KafkaException:
            return None
        holders = (member for member in members if member.assignment.topic_partitions)
        return next((f"{holder.client_id} ({holder.host})" for holder in holders), None)

    def refresh(self) -> None:
        """Poll the broker; required every few seconds. Raises InfrastructureError if the lock was lost."""
        self._poll(0.0)
        if self._lost:
            raise InfrastructureError(
                f"target: lock lost: no heartbeat for {SESSION_S:g} s; another experiment may hold it"
            )

    def release(self) -> None:
        """Release the lock."""
        self._held = False
        if self._consumer is not None:
            self._consumer.close()

    def _join(self) -> Any:
        from confluent_kafka import Consumer

        _make_topic(self._broker)
        consumer = Consumer(
            self._broker.settings(
                {
                    "group.id": LOCK_TOPIC,
                    "client.id": f"{self._attempt_id} of {getpass.getuser()}@{socket.gethostname()}",
                    "partition.assignment.strategy": "cooperative-sticky",
                    "session.timeout.ms": round(self._session_s * 1000),
                    "heartbeat.interval.ms": round(self._session_s * 1000 / 10),
                    "enable.auto.commit": False,
                }
            )
        )
        consumer.subscribe([LOCK_TOPIC], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)
        return consumer

    def _poll(self, seconds: float) -> None:
        from confluent_kafka import KafkaError

        message = self._consumer.poll(seconds)
        error = None if message is None else message.error()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise self._broker.refuse(
                f"not authorized to join group {LOCK_TOPIC} ({one_line(error.str())}); fix: grant the Connection's "
                f"user READ on groups prefixed {PREFIX}"
            )

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        self._held = self._held or bool(partitions)

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        if self._held and partitions:
            self._held, self._lost = False, True


@contextlib.contextmanager
def hold_target(
    broker: TargetBroker, attempt_id: str, *, wait_s: float, is_cancelled: Callable[[], bool] = lambda: False
) -> Iterator[TargetLock]:
    """Hold the target lock inside the block. After a cancelled wait the block runs without the lock."""
    lock = TargetLock(broker, attempt_id)
    try:
        lock.take(wait_s=wait_s, is_cancelled=is_cancelled)
        yield lock
    finally:
        lock.release()


def _make_topic(broker: TargetBroker) -> None:
    from confluent_kafka import KafkaError, KafkaException

    admin: Any = importlib.import_module("confluent_kafka.admin")
    new = admin.NewTopic(LOCK_TOPIC, num_partitions=1, replication_factor=-1)
    client = admin.AdminClient(broker.settings())
    try:
        client.create_topics([new], request_timeout=REQUEST_S)[LOCK_TOPIC].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            why = one_line(error.args[0].str())
            raise InfrastructureError(f"Connection {broker.connection}: creating {LOCK_TOPIC} failed: {why}") from None
