"""One experiment from the command line on real Kafka and Spark: an executor is killed, then the driver."""

from __future__ import annotations

import json

import pytest

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from tests.support import word_count
from tests.support.installation import Installation
from tests.support.topics import read_topic

pytestmark = pytest.mark.timeout(2400)


@pytest.mark.thorough
def test_a_word_count_is_exact_under_kills(shared_installation: Installation) -> None:
    installation = shared_installation
    assert installation.run("up", "--no-airflow").returncode == 0
    parameters = [f"rate={word_count.RATE}", f"warmup_s={word_count.WARMUP_S}", f"duration_s={word_count.DURATION_S}"]
    parameters += ["checkpoint_interval_s=1", "state_mb=0.5", f"fault_plan={json.dumps(word_count.PLAN)}"]
    done = installation.run("run", "word_count_python", *parameters, "--keep-topics")
    assert done.returncode in (0, 1), done.stderr
    record = json.loads(done.stdout)
    folder = installation.results / "attempts" / record["attempt"]
    word_count.check_record(record)
    word_count.check_kills(record, folder)
    topic = read_plan(Attempt(folder)).topics["input"].name
    word_count.check_count(record, folder, read_topic(installation.settings, topic))
    word_count.check_teardown(record, folder)
