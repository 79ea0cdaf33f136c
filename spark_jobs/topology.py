"""Chain of stages linked by Kafka topics: source, split, count and optionally persist.

    spark-submit topology.py --config FILE

Each stage is a streaming query with its own parallelism. Four optional mechanisms of `stages` keep the chain
responsive.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from stages.chain import Chain, ChainListener, ControlListener
from stages.persist_sink import PersistSink, open_store
from stages.pressure import PressureRules
from stages.replacement import ReplacementRules
from stages.replay import EDEN
from stages.source import StageSource
from stages.stage_controller import Replacement, StageController
from stages.stage_queries import COUNT, PERSIST, SPLIT, FrontierLog, Stage, StagePlan
from workload_runner import POLL_S, JsonLinesWriter, await_executors

Config = dict[str, Any]
# Stages whose tuples can fail and be read again as lines.
REPLAYABLE_STAGES = (SPLIT, COUNT)


def plans(config: Config) -> list[StagePlan]:
    """Return the plan of each stage; the output of one is the input of the next."""
    topics, names = config["topics"], list(config["parallelism"])
    folder = Path(config["checkpoint"])
    found = []
    for number, name in enumerate(names):
        inputs = {EDEN: config["input_topic"] if number == 0 else topics[names[number - 1]]}
        if number == 0 and config["replay"]:
            inputs |= config["spaces"]
        last = number == len(names) - 1
        found.append(
            StagePlan(
                name=name,
                bootstrap=config["bootstrap"],
                inputs=inputs,
                partitions=config["partitions"] if number == 0 else config["groups"],
                output=None if name == PERSIST else config["output_topic"] if last else topics[name],
                folder=folder,
                checkpoint_interval_s=config["checkpoint_interval_s"],
                groups=config["groups"],
                failing={**config["failing"], "stage": name}
                if config["failing"] and name in REPLAYABLE_STAGES
                else None,
                ends_chain=last,
                sink_options=config.get("kafka_options", {}),
            )
        )
    return found


def open_sink(config: Config) -> PersistSink | None:
    """Return the sink of the last stage; None without the stage persist."""
    if PERSIST not in config["parallelism"]:
        return None
    return PersistSink(open_store(config["store"]), config["bootstrap"], config["output_topic"], config["persistence"])


def stage_controllers(config: Config, stages: list[Stage], journal: JsonLinesWriter) -> list[StageController]:
    """Return one controller per stage; those of split and count may replace it."""
    pressure = PressureRules(**config["pressure"]) if config["pressure"] else None
    replacing = config["replacement"]
    replacement = Replacement(**{**replacing, "rules": ReplacementRules(**replacing["rules"])}) if replacing else None
    return [
        StageController(
            stage,
            above,
            pressure,
            replacement if stage.name in REPLAYABLE_STAGES else None,
            config["control_topic"],
            journal,
            [other for other in stages if other is not stage],
        )
        for above, stage in zip([None, *stages], stages, strict=False)
    ]


def main() -> None:
    """Run all stages until the stop file appears, then write the remaining results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file, written by the step submit_workload")
    options, _ = parser.parse_known_args()
    config: Config = json.loads(options.config.read_text())
    if PERSIST in config["parallelism"] and config["store"]["kind"] == "postgresql":
        config["store"]["address"] = os.environ["FAULTLINE_TOPOLOGY_DATABASE"]  # passwords are not written to files

    spark = SparkSession.builder.getOrCreate()
    spark.dataSource.register(StageSource)
    checkpoint = Path(config["checkpoint"])
    checkpoint.mkdir(parents=True, exist_ok=True)
    if not (checkpoint / "state").is_symlink():
        (checkpoint / "state").symlink_to(Path(COUNT) / "state")
    journal = JsonLinesWriter(Path(config["journal"]))
    sink = open_sink(config)
    stages = [
        Stage(spark, plan, config["parallelism"][plan.name], sink if plan.name == PERSIST else None)
        for plan in plans(config)
    ]
    application = spark.sparkContext.applicationId
    log = FrontierLog(checkpoint, config["input_topic"], JsonLinesWriter(Path(config["listener_log"])), application)
    listener = ChainListener(stages, log, journal)
    await_executors(spark, config["executors"])
    spark.streams.addListener(listener)
    journal.write("started", application=application, parallelism={stage.name: stage.parallelism for stage in stages})
    listener.resume()
    controllers = stage_controllers(config, stages, journal)
    by_stage = {one.stage_name: one for one in controllers}
    control = ControlListener(config["bootstrap"], config["control_topic"], by_stage, journal)
    chain = Chain(stages, controllers, listener, control)
    chain.warm_up(**config["primer"])
    stop_file = Path(config["stop_file"])

    def ended() -> bool:
        if sink is not None:
            sink.check()
        return stop_file.exists()

    chain.run(ended, POLL_S)
    if sink is not None:
        sink.close()
        Path(config["stored"]).write_text(json.dumps(sink.stored()))
    journal.write("stopped")
    spark.stop()


if __name__ == "__main__":
    main()
