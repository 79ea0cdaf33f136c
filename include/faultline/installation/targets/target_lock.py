"""Whose turn it is on a target: one experiment at a time, whichever installation and Airflow it comes from.

The broker itself keeps it. Whoever wants the target joins a consumer group of a topic with one partition, and has the
target while the partition is assigned to it. A member that is there keeps it when others join (cooperative-sticky), and
one that ended, or was not heard of for a session, gives it to one of those that wait. So nothing is left behind, no
clock is compared, and a file's owner cannot be gone.
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

# A holder that was not heard of for so long has lost the target.
SESSION_S = 30.0
POLL_S = 0.25


class TargetLock:
    """A target's lock: `take` and `holder` as of `system.locks.MachineLock`, and the target is lost to who is silent.

    `what`: the attempt, as others are told whom they wait for.
    """

    def __init__(self, broker: TargetBroker, what: str, *, session_s: float = SESSION_S) -> None:
        self._broker, self._what, self._session_s = broker, what, session_s
        self._consumer: Any = None
        self._held = self._lost = False

    def take(self, *, wait_s: float, is_cancelled: Callable[[], bool] = bool) -> None:
        """Waits for it, until `is_cancelled` returns True. Raises InfrastructureError naming the holder after `wait_s`
        seconds."""
        deadline = time.monotonic() + wait_s
        self._consumer = self._consumer or self._join()
        while not self._held and not is_cancelled():
            self._poll(POLL_S)
            if not self._held and time.monotonic() > deadline:
                holder = self.holder() or "nobody who can be named"
                raise InfrastructureError(
                    f"target: {holder} has it; wait for its end, or stop it (Connection {self._broker.connection})"
                )

    def holder(self) -> str | None:
        """Which experiment has the target, and whose it is; None when it is free, or nobody says."""
        from confluent_kafka import KafkaException

        admin: Any = importlib.import_module("confluent_kafka.admin")
        # Held on to: what a client that is gone was asked is never answered.
        client = admin.AdminClient(self._broker.settings())
        try:
            members = (
                client.describe_consumer_groups([LOCK_TOPIC], request_timeout=REQUEST_S)[LOCK_TOPIC].result().members
            )
        except KafkaException:
            return None
        return next((f"{one.client_id} ({one.host})" for one in members if one.assignment.topic_partitions), None)

    def refresh(self) -> None:
        """To be called each few seconds. Raises InfrastructureError when the broker has given it to somebody else."""
        self._poll(0.0)
        if self._lost:
            raise InfrastructureError(
                f"target: the broker did not hear of this experiment for {SESSION_S:g} s, and may have given the "
                "target to another one"
            )

    def release(self) -> None:
        """Gives it back."""
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
                    "client.id": f"{self._what} of {getpass.getuser()}@{socket.gethostname()}",
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
                f"its user may not join the group {LOCK_TOPIC} ({one_line(error.str())}); let it read groups whose "
                f"names begin with {PREFIX}"
            )

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        self._held = self._held or bool(partitions)

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        if self._held and partitions:
            self._held, self._lost = False, True


@contextlib.contextmanager
def hold_target(
    broker: TargetBroker, what: str, *, wait_s: float, is_cancelled: Callable[[], bool] = bool
) -> Iterator[TargetLock]:
    """The target, while it lasts."""
    lock = TargetLock(broker, what)
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
            raise InfrastructureError(
                f"Connection {broker.connection}: could not create {LOCK_TOPIC} ({why})"
            ) from None
