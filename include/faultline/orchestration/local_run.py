"""Runs the DAG `experiment` once with `dag.test()`, on a metadata database of its own.

    echo '{"conf": …}' | python -m faultline.orchestration.local_run

A database of its own, because `dag.test()` beside a scheduler would execute each task twice.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from faultline.system.settings import Settings, load_settings
from faultline.installation.airflow_home import write_airflow_home
from faultline.experiment.cell import EXPERIMENT
from faultline.lifecycle.orphans import LOCAL_RUN


def run(settings: Settings, conf: dict[str, Any]) -> bool:
    """Executes the run; true when it succeeded. The environment must name the database already."""
    from airflow.dag_processing.dagbag import DagBag

    from faultline.orchestration.provision import provision

    provision(settings)
    bag = DagBag(str(settings.root / "dags" / "experiment.py"))
    if bag.import_errors:
        raise RuntimeError(f"experiment: {next(iter(bag.import_errors.values()))}")
    outcome = bag.dags[EXPERIMENT].test(run_conf=conf, logical_date=None)
    return str(outcome.state) == "success"


def main() -> int:
    conf = json.load(sys.stdin)
    settings = load_settings()
    own = with_own_airflow(settings)
    home = write_airflow_home(own)
    os.environ[LOCAL_RUN] = "1"
    os.environ["AIRFLOW_HOME"] = str(home)
    os.environ["AIRFLOW_CONFIG"] = str(home / "airflow.cfg")
    return 0 if run(own, conf) else 1


def with_own_airflow(settings: Settings) -> Settings:
    """The same installation with an Airflow home beside the scheduler's."""
    return _OwnAirflow(**{field.name: getattr(settings, field.name) for field in fields(settings)})


class _OwnAirflow(Settings):
    @property
    def airflow_home(self) -> Path:
        return self.home / "airflow-local"


if __name__ == "__main__":
    raise SystemExit(main())
