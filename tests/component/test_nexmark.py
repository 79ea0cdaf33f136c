"""Nexmark on real Spark: each query is killed during a batch, resumed, and compared with DuckDB."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pandas as pd
import pytest

from faultline.engines.spark.settings import NEXMARK_SETTINGS
from faultline.experiment.workloads.nexmark_events import QUERIES
from faultline.installation.java import find_java
from faultline.installation.spark import spark_home
from faultline.system.settings import ROOT
from faultline.system.waiting import wait_until
from tests.support.nexmark_oracle import answer, streamed
from tests.support.spark_session import PROGRAMS, local_settings

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(3000)]

assert str(PROGRAMS) in sys.path
FORMS = (*QUERIES, "q4-updating", "q7-updating", "q9-updating")
EVENTS, BATCH, HOLD = 200_000, 100_000, 1
LIMIT_S = 1200


def command(folder: Path, *arguments: str) -> list[str]:
    conf = {
        **local_settings(folder),
        **NEXMARK_SETTINGS,
        "spark.driver.memory": "3g",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
    }
    options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    program = str(ROOT / "tests" / "support" / "nexmark_stream.py")
    submit = str(spark_home() / "bin" / "spark-submit")
    return [submit, "--master", "local[2]", *options, program, str(folder), str(EVENTS), str(BATCH), *arguments]


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    java = find_java(folder / "java.json").home
    own = {"JAVA_HOME": str(java), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command(folder, *arguments), env={**os.environ, **own}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip


@pytest.fixture(scope="module")
def stream_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of all streams, each killed in its second batch and resumed in another JVM."""
    folder = tmp_path_factory.mktemp("nexmark")
    first = start(folder, "--hold", str(HOLD), *FORMS)
    try:
        wait_until(
            lambda: len(list((folder / "held").glob("q*"))) == len(FORMS),
            timeout_s=LIMIT_S, every_s=0.2, what="each query amid its second batch",
            alive=lambda: None if first.poll() is None else f"ended with {first.returncode}; see {folder / 'log'}",
        )  # fmt: skip
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    for name in FORMS:
        assert not list((folder / "out" / name).glob(f"batch={HOLD}")), "the batch it was killed in was not written"
    second = start(folder, *FORMS)
    try:
        assert second.wait(LIMIT_S) == 0, (folder / "log").read_text(errors="replace")[-3000:]
        yield folder
    finally:
        if second.poll() is None:
            os.killpg(second.pid, signal.SIGKILL)
            second.wait()


@pytest.mark.parametrize("query", FORMS)
def test_a_killed_query_has_the_result_of_duckdb(stream_folder: Path, query: str) -> None:
    from tests.support.nexmark_stream import load_form

    expected, form = answer(stream_folder / "events", query.partition("-")[0]), load_form(query)
    assert len(expected), "a query without an answer shows nothing"
    pd.testing.assert_frame_equal(streamed(stream_folder / "out", query, form.key, form.extra_columns), expected)


def test_the_events_match_the_nexmark_suite(stream_folder: Path) -> None:
    with duckdb.connect() as database:
        for stream in ("person", "auction", "bid"):
            database.execute(f"CREATE VIEW {stream} AS SELECT * FROM '{stream_folder / 'events' / stream}/*.parquet'")

        def value(sql: str) -> float:
            found = database.execute(sql).fetchone()
            assert found is not None
            return float(found[0])

        counts = [value(f"SELECT count(*) FROM {stream}") for stream in ("person", "auction", "bid")]
        assert counts == [EVENTS * share / 100 for share in (2, 6, 92)]
        # Mean sizes as defined by the suite: 8 bytes per number or time, plus texts.
        texts = (
            "length(name) + length(emailAddress) + length(creditCard) + length(city) + length(state) + length(extra)"
        )
        assert value(f"SELECT avg(8 + {texts}) FROM person") == pytest.approx(200, rel=0.02)
        assert value(
            "SELECT avg(48 + length(itemName) + length(description) + length(extra)) FROM auction"
        ) == pytest.approx(500, rel=0.02)
        assert value("SELECT avg(32 + length(extra)) FROM bid") == pytest.approx(100, rel=0.02)
        # Hot ids: the first of the newest hundred auctions, the second of the newest hundred persons.
        assert value("SELECT avg(CAST((auction - 1000) % 100 = 0 AS INT)) FROM bid") == pytest.approx(0.5, abs=0.02)
        assert value("SELECT avg(CAST((bidder - 1000) % 100 = 1 AS INT)) FROM bid") == pytest.approx(0.75, abs=0.02)
        assert value("SELECT avg(CAST((seller - 1000) % 100 = 0 AS INT)) FROM auction") == pytest.approx(0.75, abs=0.03)
        # Other ids are recent: one of 100 open auctions or the next ten, one of the last 1,000 persons.
        newest = "1000 + (n // 50) * 3 + 2"
        assert value(f"SELECT max(auction - ({newest})) FROM bid WHERE (auction - 1000) % 100 <> 0") == 10
        assert value(f"SELECT min(auction - ({newest})) FROM bid WHERE (auction - 1000) % 100 <> 0") == -100
        assert value("SELECT max(bidder - (1000 + n // 50)) FROM bid WHERE (bidder - 1000) % 100 <> 1") == 10
        assert value("SELECT min(bidder - (1000 + n // 50)) FROM bid WHERE (bidder - 1000) % 100 <> 1") == -999
        # The logarithm of prices is uniform over six powers of ten.
        for power in range(1, 6):
            share = value(f"SELECT avg(CAST(price < 100 * power(10, {power}) AS INT)) FROM bid")
            assert share == pytest.approx(power / 6, abs=0.01)
        assert (value("SELECT min(price) FROM bid"), value("SELECT max(price) FROM bid") <= 1e8) == (100, True)
        hot = "channel IN ('Google', 'Facebook', 'Baidu', 'Apple')"
        assert value(f"SELECT avg(CAST({hot} AS INT)) FROM bid") == pytest.approx(0.5, abs=0.01)
        assert value("SELECT count(DISTINCT url) FROM bid WHERE " + hot) == 4
        named = value(f"SELECT avg(CAST(url LIKE '%&channel_id=%' AS INT)) FROM bid WHERE NOT {hot}")
        assert named == pytest.approx(0.9, abs=0.01)
        assert value("SELECT max(id) - min(id) + 1 - count(DISTINCT id) FROM auction") == 0, "ids without gaps"
        # On average, an auction lasts until 100 more have started.
        horizon_s = 100 * 50 / 3 / 10_000
        dense = "SELECT avg(epoch(expires) - epoch(dateTime)) FROM auction WHERE id < 6800"
        assert value(dense) == pytest.approx(horizon_s, rel=0.03)
        # The data cover what queries depend on: two days, all hours, gaps between bids, disorder.
        assert value("SELECT count(DISTINCT CAST(dateTime AS DATE)) FROM bid") == 2
        assert value("SELECT count(DISTINCT hour(dateTime)) FROM bid") >= 6
        before = "(SELECT *, lag(dateTime) OVER (ORDER BY n) AS before FROM bid)"
        assert value(f"SELECT avg(CAST(dateTime < before AS INT)) FROM {before}") > 0.1
