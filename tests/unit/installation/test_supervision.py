"""What `up` says of programs that do not answer."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faultline.installation import supervision
from faultline.installation.services import kafka
from faultline.installation.services.kafka import prepare_kafka
from faultline.installation.supervision import _start_daemon, provision_airflow
from faultline.system.errors import InfrastructureError
from faultline.system.files import write_private
from faultline.system.settings import ROOT, Settings


@pytest.mark.parametrize(
    ("start", "line"),
    [
        (
            lambda given: _start_daemon(given, Path("java"), Path("/")),
            r"supervisord: its start: not within \d+ s",
        ),
        (lambda given: provision_airflow(given, print), r"airflow: its database: not within \d+ s; see"),
        (lambda given: prepare_kafka(given, Path("java")), r"kafka: formatting its storage: not within \d+ s; see how"),
    ],
    ids=["supervisord", "database", "storage"],
)
def test_a_program_that_does_not_answer_is_a_line(
    start: Callable[[Settings], None], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(command: list[str], *, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    given = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    given.home.mkdir()
    write_private(given.home / "instance.json", '{"instance": "0"}')
    monkeypatch.setattr(supervision, "data_services", lambda *_: [])
    monkeypatch.setattr(supervision, "airflow_environment", lambda _: {})
    monkeypatch.setattr(kafka, "kafka_classpath", lambda _: "")
    monkeypatch.setattr(subprocess, "run", never)
    with pytest.raises(InfrastructureError) as raised:
        start(given)
    assert re.match(line, str(raised.value)) and "\n" not in str(raised.value)
    assert not (given.secrets / "format.arguments").exists(), "it has passwords"
