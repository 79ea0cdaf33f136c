"""The dynamic topology on real Kafka and Spark: nothing is lost by kills, a lost queue, replays and replacements."""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from faultline.experiment.workloads.topology import MEMCACHED
from faultline.system.settings import port_is_free
from faultline.system.waiting import wait_until
from spark_jobs.stages.stores import SqliteStore
from tests.support.chain import ChainRun
from tests.support.installation import BUSY_MACHINE_REASONS, Installation, free_ports
from tests.support.topics import client, read_topic

pytestmark = pytest.mark.timeout(900)

WORDS = [f"w{number}" for number in range(200)]
Chains = Callable[..., ChainRun]


@pytest.fixture
def chains(shared_installation: Installation, tmp_path: Path) -> Iterator[Chains]:
    """Chains, stopped after the test."""
    assert shared_installation.run("up", "--no-airflow").returncode == 0
    made: list[ChainRun] = []

    def make(**values: Any) -> ChainRun:
        made.append(ChainRun(shared_installation, tmp_path / f"{tmp_path.parent.name}-{tmp_path.name}", values))
        return made[-1]

    yield make
    for chain in made:
        chain.kill()


def lines(number: int, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=8)) for _ in range(number)]


def counted(sent: list[str]) -> Counter[str]:
    return Counter(word for line in sent for word in line.split(" "))


def stored(chain: ChainRun) -> dict[str, int]:
    return SqliteStore(str(chain.attempt.folder / "results.sqlite")).results()


def acknowledged(chain: ChainRun) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in read_topic(chain.installation.settings, chain.topics["output"]):
        found[record.key] = max(found.get(record.key, 0), int(record.value))
    return found


def batches(chain: ChainRun, stage: str | None) -> int:
    """Return the number of completed batches with rows."""
    return sum(line["stage"] == stage and line["rows"] > 0 for line in chain.journal("batch"))


@pytest.mark.thorough
def test_a_chain_that_is_killed_loses_nothing(chains: Chains) -> None:
    chain = chains(parallelism="1-1-1", mechanisms="replay", shuffle_partitions=2, topology={"fail_share": 0.1})
    sent = lines(100)
    chain.send(sent)
    chain.start()
    chain.await_through()
    before, more = batches(chain, "source"), lines(100, seed=2)
    chain.send(more)
    sent += more
    wait_until(lambda: batches(chain, "source") > before, timeout_s=120, every_s=0.02, what="a batch of source")
    chain.kill()
    chain.await_through()
    assert chain.finish() == 0
    found, expected = acknowledged(chain), counted(sent)
    assert set(found) == set(expected) and chain.starts >= 1 and chain.journal("failed")
    assert all(found[word] >= count for word, count in expected.items())


@pytest.mark.thorough
def test_replay_loses_nothing_under_failures_and_kills_of_busy_stages(chains: Chains) -> None:
    chain = chains(
        parallelism="1-2-2-1", mechanisms="replay", shuffle_partitions=4,
        topology={"fail_share": 0.2, "poison": "poison", "max_attempts": 12, "persist_by": "batch"},
    )  # fmt: skip
    sent = lines(400)
    chain.send(sent)
    chain.start()
    chain.await_through()
    for turn, above in enumerate((None, "source", "split", "count")):
        wait_until(lambda: len(chain.planners()) == 4, timeout_s=120, what="a planner of each stage")
        before = batches(chain, above)
        more = lines(200, seed=turn + 2)
        chain.send(more)
        sent += more
        # Once the stage is busy, its planner is killed, or the JVM with all stages.
        wait_until(lambda above=above, before=before: above is None or batches(chain, above) > before,
                   timeout_s=120, every_s=0.02, what=f"a batch of {above}")  # fmt: skip
        if turn % 2:
            chain.kill()
        else:
            chain.planners()[turn].kill()
        chain.await_through()
    chain.send(["poison poison"])
    chain.await_through()
    assert chain.finish() == 0
    expected, found = counted(sent), stored(chain)
    assert set(found) == set(expected)
    assert all(found[word] >= count for word, count in expected.items())
    assert found == acknowledged(chain)
    failed = sum(line["count"] for line in chain.journal("failed"))
    assert failed > 0.2 * sum(expected.values()) * 0.8
    # A tuple that always fails is dropped after its attempts and blocks no other.
    aside = read_topic(chain.installation.settings, chain.topics["set-aside"])
    assert [(record.key, record.value) for record in aside] == [("12", "poison poison")]


@pytest.mark.thorough
def test_a_lost_queue_loses_nothing_that_was_not_written(
    memcached: str, chains: Chains, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_ports(1)[0]
    monkeypatch.setenv(MEMCACHED, f"127.0.0.1:{port}")
    command = [memcached, "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-u", "nobody"]

    def start() -> subprocess.Popen[bytes]:
        server = subprocess.Popen(command)
        wait_until(lambda: not port_is_free(port), timeout_s=120, what="memcached")
        return server

    server = start()
    try:
        rules = {"queue": "memcached", "flush_every_s": 600, "flush_length": 10**6}
        chain = chains(
            parallelism="1-1-1-1", mechanisms="delayed_persistence", shuffle_partitions=2, topology=rules
        )  # fmt: skip
        sent = lines(300)
        chain.send(sent)
        chain.start()
        chain.await_through()
        assert acknowledged(chain) == counted(sent) and stored(chain) == {}
        server.kill()
        server.wait(120)
        more = lines(100, seed=2)
        chain.send(more)
        assert chain.process is not None
        chain.process.wait(120)  # the stage must not acknowledge further
        assert stored(chain) == {}
        server = start()
        chain.await_through()
        assert acknowledged(chain) == counted(sent + more) and stored(chain) == {}
        # It also survives a crash with a filled queue and a stop right after the restart.
        chain.kill()
        chain.start()
        assert chain.finish() == 0
        assert stored(chain) == acknowledged(chain) == counted(sent + more)
    finally:
        server.kill()
        server.wait(120)


@pytest.mark.thorough
def test_backpressure_rises_one_step_and_ends_without_a_control_topic(chains: Chains) -> None:
    chain = chains(
        parallelism="1-1-1", mechanisms="back_pressure", shuffle_partitions=2, topology={"queue_capacity": 400}
    )
    chain.start()
    sent: list[str] = []

    def limits() -> dict[str, float | None]:
        return {line["stage"]: line["limit"] for line in chain.journal("limit")}

    def more() -> bool:
        if chain.is_through():  # a burst of words beyond the capacity of count
            burst = lines(300, seed=len(sent))
            chain.send(burst)
            sent.extend(burst)
        return limits().get("split") is not None

    wait_until(more, timeout_s=120, what="a limit of split")
    signals = chain.journal("signal")
    assert ("count", "split", "slow") in {(line["stage"], line["to"], line["act"]) for line in signals}
    assert all(line["queue"] > 320 for line in signals if line["act"] == "slow")
    # Without the control topic no limit can be lifted, so all are lifted.
    admin = AdminClient(client(chain.installation.settings))
    for deleted in admin.delete_topics([chain.topics["control"]]).values():
        deleted.result()
    wait_until(lambda: not any(limits().values()), timeout_s=60, what="the limits to be lifted")
    chain.await_through()
    assert chain.finish() == 0
    assert acknowledged(chain) == counted(sent)


@pytest.mark.thorough
def test_a_slow_stage_is_replaced(chains: Chains) -> None:
    chain = chains(
        parallelism="1-1-1", mechanisms="replacement", shuffle_partitions=4,
        topology={"tuple_timeout_s": 0.2, "window_s": 1, "windows": 2, "threshold": 0},
    )  # fmt: skip
    sent: list[str] = []
    chain.start()
    for turn in range(60):
        more = lines(200, seed=turn)
        chain.send(more)
        sent += more
        chain.await_through()
        if chain.journal("replaced"):
            break
    replaced = chain.journal("replaced")
    assert replaced and replaced[0]["parallelism"] != replaced[0]["before"]
    assert all(0 < line["gap_s"] < 60 for line in replaced)
    assert chain.finish() == 0
    assert acknowledged(chain) == counted(sent)


@pytest.mark.thorough
def test_a_whole_experiment_with_all_mechanisms_loses_nothing_when_the_executor_is_killed(
    memcached: str, shared_installation: Installation
) -> None:
    installation = shared_installation
    assert installation.run("up", "--no-airflow").returncode == 0
    done = installation.run(
        "run", "topology", "parallelism=1-2-2-1", "mechanisms=all", 'topology={"queue": "memcached"}', "rate=50",
        "warmup_s=5", "duration_s=50", "fault=executor",
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    record = json.loads(done.stdout)
    assert record["status"] in ("valid", "unmet", "invalid"), record["reasons"]
    assert all(reason.startswith(BUSY_MACHINE_REASONS) for reason in record["reasons"]), record["reasons"]
    metrics = record["metrics"]
    assert (metrics["audit"]["lost"], metrics["audit"]["unexpected"], metrics["stages"]["unstored"]) == (0, 0, 0)
    assert metrics["recovery"]["reload_s"] is not None
    assert metrics["latency_ms"]["method"] == "rank"
    # A word counted twice is ahead of its rank, so outputs seem to precede their word.
    assert metrics["latency_ms"]["negative"] == 0 or metrics["audit"]["overcounted"]
    attempt = installation.results / "attempts" / record["attempt"]
    ledger = [json.loads(line) for line in (attempt / "ledger.jsonl").read_text().splitlines()]
    (server,) = [line for line in ledger if line["role"] == "memcached"]
    assert not psutil.pid_exists(server["pid"])
