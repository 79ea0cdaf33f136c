"""Topics of attempts, deleted by whichever client may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from faultline.system.errors import InfrastructureError
from faultline.system.kafka import kafka_client
from faultline.system.secrets import WORKLOAD
from faultline.system.settings import Settings

# Names of an attempt's topics begin so.
TOPICS = "faultline-"
# The client itself gives up in time, and says why.
TIMEOUTS = dict.fromkeys(("operation_timeout", "request_timeout"), 30.0)


def delete_topics(client: Any, topics: Sequence[str]) -> None:
    """Deletes topics by an admin client; those that are gone already are fine. Raises InfrastructureError."""
    from confluent_kafka import KafkaError, KafkaException

    for name, future in (client.delete_topics(list(topics), **TIMEOUTS) if topics else {}).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise InfrastructureError(f"topic {name}: could not be deleted: {error.args[0].str()}") from None


def delete_own_topics(settings: Settings, topics: Sequence[str]) -> None:
    """The same at the installation's own broker, or that of the target that the settings are for, outside Airflow."""
    if topics:
        delete_topics(admin_of(settings), topics)


def admin_of(settings: Settings) -> Any:
    """An admin client of that broker."""
    from confluent_kafka.admin import AdminClient

    return AdminClient(kafka_client(settings.endpoints.kafka, secrets=settings.logins))


def let_workload_in(client: Any) -> None:
    """Lets the user for workloads read and write topics of attempts, as any group, and do nothing else. Idempotent."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    def allow(kind: Any, name: str, pattern: Any, operation: Any) -> Any:
        return AclBinding(kind, name, pattern, f"User:{WORKLOAD}", "*", operation, AclPermissionType.ALLOW)

    on_topics = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)
    rights = [allow(ResourceType.TOPIC, TOPICS, ResourcePatternType.PREFIXED, operation) for operation in on_topics]
    rights.append(allow(ResourceType.GROUP, "*", ResourcePatternType.LITERAL, AclOperation.READ))
    try:
        for future in client.create_acls(rights, request_timeout=TIMEOUTS["request_timeout"]).values():
            future.result()
    except KafkaException as error:
        raise InfrastructureError(f"kafka: the workload's rights could not be set: {error.args[0].str()}") from None
