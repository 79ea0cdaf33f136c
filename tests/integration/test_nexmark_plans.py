"""What Spark plans for Nexmark: every field of the events is made, and every column of a result reaches the sink."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from faultline.config import parse_configuration
from faultline.nexmark import QUERIES, rules
from faultline.settings import ROOT
from generators.nexmark import NexmarkEvents, rules_of
from tests.integration.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = local_session(tmp_path_factory.mktemp("plans"))
    session.conf.set("spark.sql.debug.maxToStringFields", "200")
    yield session
    session.stop()


def streams_of(query: str) -> set[str]:
    """The streams that a query reads, by its own text."""
    folder = ROOT / "spark_jobs" / "nexmark" / "queries"
    module = folder / f"{query}.py"
    if module.exists():
        return {"auction", "bid"} if "winning_bids" in module.read_text() else {"bid"}
    return set(re.findall(r"(?:FROM|JOIN) (person|auction|bid)\b", (folder / f"{query}.sql").read_text()))


@pytest.mark.parametrize("query", QUERIES)
def test_whole_events_are_made_and_whole_results_arrive(spark: SparkSession, query: str) -> None:
    from nexmark import events as made
    from nexmark.catalogue import Streams, load

    rows = made.Events(spark.range(1000).withColumnRenamed("id", "n"), made.Rules())
    results = load(query).build(spark, Streams(rows.person(), rows.auction(), rows.bid()))
    execution = results._jdf.queryExecution()  # type: ignore[operator]
    plan = execution.optimizedPlan().toString()
    looked_at = {
        # A category that the query fixes stands there as its value.
        frozenset(name.split("#")[0].replace("10", "category") for name in fields.split(", "))
        for fields in re.findall(r"xxhash64\((\w+#\d+L?(?:, (?:\w+#\d+L?|10))+), 42\)", plan)
    }
    fields = {"person": made.PERSON, "auction": made.AUCTION, "bid": made.BID}
    assert looked_at == {frozenset(fields[stream]) for stream in streams_of(query)}

    output = execution.executedPlan().output()
    names = [output.apply(place).name() for place in range(output.size())]
    assert names == results.columns and names


def test_the_sink_gets_every_column_of_a_running_stream(spark: SparkSession, tmp_path: Path) -> None:
    from nexmark import events as made
    from nexmark.catalogue import Streams, load

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load().selectExpr("value AS n")
    rows = made.Events(numbers, made.Rules())
    results = load("q22").build(spark, Streams(rows.person(), rows.auction(), rows.bid()))
    writer = results.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    running = writer.trigger(availableNow=True).start()
    running.awaitTermination()
    executed = running._jsq.streamingQuery().lastExecution().executedPlan()  # type: ignore[attr-defined]
    written = executed.children().apply(0).output()
    assert [written.apply(place).name() for place in range(written.size())] == results.columns


def test_kafka_gets_the_events_that_the_engine_makes(spark: SparkSession) -> None:
    from nexmark import events as made
    from nexmark.json_events import parsed

    given = rules(parse_configuration({"workload": "nexmark", "disorder": 0.3, "seed": 5}), repetition=1)
    del given["curve"]
    numbers = np.arange(60_000, dtype=np.uint64)
    source = NexmarkEvents(rules_of(given), None, 0)
    lines = [line.decode() for line in source.events(numbers, source.due_ms(numbers))]
    sent = parsed(spark.createDataFrame(pd.DataFrame({"value": lines})))
    own = made.Events(spark.range(len(numbers)).withColumnRenamed("id", "n"), made.Rules.of(given))
    for name, fields in (("person", made.PERSON), ("auction", made.AUCTION), ("bid", made.BID)):
        columns = ["n", *fields]
        there, here = (
            one.select(columns).toPandas().sort_values("n", ignore_index=True)
            for one in (getattr(sent, name), getattr(own, name)())
        )
        assert len(here)
        pd.testing.assert_frame_equal(there, here)
