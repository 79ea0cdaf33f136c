"""Topics of attempts, deleted by whichever client may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from faultline.base.errors import InfrastructureError
from faultline.base.kafka_login import kafka_client
from faultline.base.settings import Settings

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
    """The same at the installation's own broker, outside Airflow."""
    from confluent_kafka.admin import AdminClient

    if topics:
        delete_topics(AdminClient(kafka_client(settings.endpoints.kafka, secrets=settings.secrets)), topics)
