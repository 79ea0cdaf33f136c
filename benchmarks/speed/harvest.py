"""Growth of the time of `harvest` with the number of tuples of an experiment.

The real program reads topics of a real broker. The schedule gets longer at the default rate, so records, batches and
outputs all grow. The tables of each harvest are compared with the content of the topics, so that no wrong result is
timed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.figure import BenchmarkFigure
from benchmarks.speed.spark_job import QUICK_SIZES, SIZES, Cost, Size, growth, run_job, submit_command
from benchmarks.synthetic_topics import FilledTopics, fill_topics, fresh_topics
from faultline.cli.service_control import bring_up
from faultline.engines.batches import BATCHES_FILE, write_batches
from faultline.experiment.attempt import write_json
from faultline.experiment.config import Configuration, parse_configuration
from faultline.records.judge.counts import audit
from faultline.system.errors import InfrastructureError
from faultline.system.kafka import kafka_options
from faultline.system.settings import Settings
from faultline.system.text import Progress


@dataclass(frozen=True)
class Subject:
    """Workload to harvest, with its approximate number of tuples per record, and the sizes to measure."""

    workload: str
    tuples_per_record: float
    sizes: tuple[int, ...]

    def records(self, asked: int) -> int:
        """Return the records for about this number of tuples."""
        return max(1, round(asked / self.tuples_per_record))


SUBJECTS = (
    Subject("word_count", 10, SIZES),  # a line of ten words
    Subject("stock_join", 1.8, SIZES[:2]),  # refreshed windows of users
)


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Return the figures of `growth_figures` for the program `harvest`, by workload.

    Those of word count have no prefix. Starts a broker; creates topics and deletes them. Raises InfrastructureError if
    the program fails, or if its tables differ from the topics.
    """
    settings = bring_up(progress, airflow=False)
    figures: dict[str, BenchmarkFigure] = {}
    for subject in SUBJECTS:
        config = parse_configuration({"workload": subject.workload, "fault": "none"})

        def measure(asked: int, times: int, subject: Subject = subject, config: Configuration = config) -> Size:
            return _measure(settings, config, asked, subject.records(asked), times, progress)

        first = subject is SUBJECTS[0]
        found = growth(measure, QUICK_SIZES if quick else subject.sizes, huge=first and not quick)
        prefix = "" if first else f"{subject.workload}_"
        figures |= {prefix + name: figure for name, figure in found.items()}
    return figures


def _measure(
    settings: Settings, config: Configuration, asked: int, records: int, times: int, progress: Progress
) -> Size:
    """Fill topics once, and harvest them `times` times."""
    with (
        fresh_topics(settings.endpoints.kafka, config.partitions, 2) as topics,
        tempfile.TemporaryDirectory(prefix="faultline-harvest-") as folder,
    ):
        filled = fill_topics(settings.endpoints.kafka, topics, config, records)
        configuration = write_configuration(Path(folder), settings, topics, config, filled)
        costs = tuple(_harvest(settings, configuration, filled) for _ in range(times))
    progress(
        f"{config.workload}, {filled.tuples:,} tuples ({filled.records:,} records, {len(filled.batches):,} batches, "
        f"{filled.outputs:,} outputs): {', '.join(map(str, costs))}"
    )
    return Size(asked, filled.tuples, costs)


def write_configuration(
    folder: Path, settings: Settings, topics: Sequence[str], config: Configuration, filled: FilledTopics
) -> Path:
    """Write the program's configuration like the step `harvest`; return the path."""
    method = config.kind.latency_method_of(config.own)
    write_batches(folder, filled.batches, method=method, reached=filled.batches[-1].ends)
    path = folder / "harvest_config.json"
    content = {
        "bootstrap": settings.endpoints.kafka,
        "kafka_options": kafka_options(settings),
        "input_topic": topics[0],
        "output_topic": topics[1],
        "batches": str(folder / BATCHES_FILE),
        "target": str(folder / "harvest"),
        **config.kind.tuples(config.own),
    }
    write_json(path, content)
    return path


def _harvest(settings: Settings, configuration: Path, filled: FilledTopics) -> Cost:
    command = submit_command(settings, "harvest", ["--config", str(configuration)])
    cost = run_job(settings, command, configuration.parent)
    problems = differences(Path(json.loads(configuration.read_text())["target"]), filled)
    if problems:
        raise InfrastructureError(f"harvest: {problems[0]}; expected the content of the topics")
    return cost


def differences(target: Path, filled: FilledTopics) -> list[str]:
    """Return how the harvest's tables differ from the topics; empty if they do not."""
    found, _ = audit(target / "counts.parquet", None, 0)
    rows = pq.read_table(target / "tuples.parquet", columns=["emitted_ms", "n"])
    emitted = pc.sum(pc.multiply(pc.subtract(rows["emitted_ms"], filled.t0_ms), rows["n"])).as_py()
    expected = {
        "records": (pq.read_metadata(target / "records.parquet").num_rows, filled.records),
        "expected": (found.expected, filled.counted),
        "lost": (found.lost, 0),
        "overcounted": (found.overcounted, 0),
        "unexpected": (found.unexpected, 0),
        "sums that differ": (found.checksum_mismatches or 0, 0),
        "reemitted": (found.reemitted, filled.reemitted),
        "tuples": (pc.sum(rows["n"]).as_py(), filled.tuples),
        "unreflected rows": (rows["emitted_ms"].null_count, 0),
        "sum of emissions in ms": (emitted, filled.emitted_ms),
    }
    return [f"{name}: {there}, not {planted}" for name, (there, planted) in expected.items() if there != planted]
