"""Topics of an attempt, through the Kafka provider's admin hook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.apache.kafka.hooks.client import KafkaAdminClientHook

from faultline.system.errors import InfrastructureError
from faultline.system.settings import is_open, load_settings
from faultline.installation.topics import TIMEOUTS, admin_of, let_workload_in
from faultline.installation.topics import delete_topics as delete
from faultline.experiment.plan import configuration_of, plan_of

if TYPE_CHECKING:
    from faultline.experiment.attempt import Attempt


def create_topics(attempt: Attempt) -> None:
    """Creates the topics of the plan; a topic that exists already is a mistake, and refused.

    The hook's own `create_topic` ignores topic settings, so its admin client is used.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    plan = plan_of(attempt)
    varied = configuration_of(attempt).topic_conf or {}
    # Records stay until the teardown deletes their topic, however long the run, and however late its harvest.
    kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    there = load_settings().at(plan.endpoints)
    # A target's broker knows itself how many copies it keeps, and who may come.
    copies = -1 if there.target else 1

    def settings(role: str) -> dict[str, str]:
        # Intended send times lie in the past once the generator is late; CreateTime keeps them as they are.
        by_broker = plan.stamped_by_broker and role == "output"
        return {"message.timestamp.type": "LogAppendTime" if by_broker else "CreateTime", **kept, **varied}

    topics = [
        NewTopic(topic.name, num_partitions=topic.partitions, replication_factor=copies, config=settings(role))
        for role, topic in plan.topics.items()
    ]
    client = admin_of(there) if there.target else KafkaAdminClientHook(kafka_config_id="kafka_default").get_conn
    if there.target is None and not is_open(there):
        let_workload_in(client)
    for name, future in client.create_topics(topics, **TIMEOUTS).items():
        try:
            future.result()
        except KafkaException as error:
            raise InfrastructureError(f"topic {name}: could not be created: {error.args[0].str()}") from None


def delete_topics(topics: list[str]) -> None:
    """Deletes topics; those that are gone already are fine."""
    if topics:
        delete(KafkaAdminClientHook(kafka_config_id="kafka_default").get_conn, topics)
