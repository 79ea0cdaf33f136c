"""Starts the Spark that stays: `spark_jobs/session.py`, to which harvest and aggregate are handed.

    python -m faultline.installation.session_start

spark-submit takes this process's place. Settings are those of a small job: the optimising compiler and adaptive plans
cost such a job more than they bring, and they would be at work after it, beside what is measured next.
"""

from __future__ import annotations

import os

from faultline.engines.spark.settings import LOCAL_MASTER, batch_settings, program, spark_environment
from faultline.installation.class_data import archive_here
from faultline.installation.java import find_java
from faultline.installation.services import spark_submit
from faultline.system.secrets import read_secrets
from faultline.system.settings import load_settings


def main() -> None:
    settings = load_settings()
    # Master and workers know what it says: another would let nobody in.
    read_secrets(settings.secrets)
    conf = batch_settings(settings, archive=archive_here(settings))
    socket = ("--socket", str(settings.session_socket))
    command = spark_submit(settings, conf, program(settings, "session"), *socket, master=LOCAL_MASTER, name="session")
    environment = {**os.environ, **spark_environment(settings, find_java(settings.home / "java.json").home)}
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    main()
