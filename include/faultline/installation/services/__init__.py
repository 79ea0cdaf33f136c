"""The embedded services: what each one runs, and when it is ready.

Every service is the real program: a Kafka broker in KRaft mode, a Spark standalone master with
two workers, a Spark of one JVM that stays for short jobs, and Airflow's API server, scheduler, DAG processor and
triggerer.
"""

from __future__ import annotations

from pathlib import Path

from faultline.engines.spark.distributions import those_that_are_known
from faultline.engines.spark.standalone import WORKER_MEMORY
from faultline.installation.services.airflow import airflow_health, airflow_services
from faultline.installation.services.hosts import host_services
from faultline.installation.services.kafka import kafka_ready, kafka_service, prepare_kafka
from faultline.installation.services.service import Service
from faultline.installation.services.spark import (
    master_state,
    prepare_spark,
    session_service,
    spark_home,
    spark_services,
    spark_submit,
)
from faultline.system.settings import Settings

__all__ = [
    "WORKER_MEMORY",
    "Service",
    "airflow_health",
    "control_services",
    "data_services",
    "kafka_ready",
    "master_state",
    "prepare_kafka",
    "prepare_spark",
    "spark_home",
    "spark_submit",
]


def data_services(settings: Settings, java: Path, instance: str) -> list[Service]:
    """Kafka, the Spark master and the workers, of the `up` that is known as `instance`; those of other builds of Spark
    that are registered, too."""
    # One that is gone keeps nothing else from starting; whoever asks for it is told.
    there = [own for own in those_that_are_known(settings).values() if own.spark_home.is_dir()]
    builds = [one for own in there for one in spark_services(settings, instance, own)]
    own = [kafka_service(settings, java, instance), *spark_services(settings, instance)]
    return [*host_services(settings), *own, *builds]


def control_services(settings: Settings) -> list[Service]:
    """What runs the experiments: Airflow, and the Spark that it hands harvest and aggregate to."""
    return [*airflow_services(settings), session_service(settings)]
