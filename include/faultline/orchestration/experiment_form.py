"""The form of the DAG `experiment`, and the order that its values stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Param

from faultline.experiment.build import EXAMPLE
from faultline.experiment.config import Configuration
from faultline.experiment.sweep_id import MOST, PATTERN
from faultline.orchestration.forms import configuration_params, label_param, refuse_unknown

if TYPE_CHECKING:
    from faultline.lifecycle.prepare import Order

BOOKKEEPING = ("repetition", "series", "build", "matrix", "sweep_id", "parent_run_id", "logical_date")
BUILD_SPEC = "build_spec"
# What the DAG itself needs to know of a run.
SWITCHES = ("keep_topics", "only_missing")


def experiment_params() -> dict[str, Param]:
    """One complete configuration, and where the record belongs."""
    return {
        **configuration_params(),
        "repetition": Param(
            0, type="integer", minimum=0, title="repetition", section="Bookkeeping",
            description="Number of the repetition.",
        ),
        "series": label_param("series", "Records are compared within a series. Empty: the build."),
        "build": label_param("build", "Label of the software under test. Empty: versions, settings, code."),
        "matrix": label_param("matrix", "The matrix that asks for this experiment; empty for a single one."),
        "sweep_id": Param(
            None, type=["null", "string"], pattern=PATTERN, maxLength=MOST, title="sweep_id", section="Bookkeeping",
            description="The sweep.",
        ),
        "parent_run_id": Param(
            None, type=["null", "string"], title="parent_run_id", section="Bookkeeping",
            description="Run of the matrix; when it is stopped, this experiment ends as cancelled.",
        ),
        "logical_date": Param(
            None, type=["null", "string"], title="logical_date", section="Bookkeeping",
            description="The night it stands for.",
        ),
        BUILD_SPEC: Param(
            None, type=["null", "object"], title=BUILD_SPEC, section="Bookkeeping",
            description=f"What is under test in place of the installed programs and settings, such as {EXAMPLE}",
        ),
        "keep_topics": Param(
            False, type="boolean", title="keep_topics", section="Bookkeeping",
            description="Keep the Kafka topics after the teardown, to look at them.",
        ),
        "only_missing": Param(
            False, type="boolean", title="only_missing", section="Bookkeeping",
            description="Measure nothing when the cell has a valid record by the time its turn comes.",
        ),
    }  # fmt: skip


def order_of(params: dict[str, Any], run_id: str | None = None) -> Order:
    """The order that the params of the run `run_id` stand for. Raises ConfigError naming the key."""
    from faultline.experiment.build import parse_build
    from faultline.experiment.config import parse_configuration
    from faultline.lifecycle.prepare import Order

    known = Configuration.model_fields
    refuse_unknown(params, [*known, *BOOKKEEPING, BUILD_SPEC, *SWITCHES])
    config = parse_configuration({key: value for key, value in params.items() if key in known})
    given: dict[str, Any] = {key: params[key] for key in BOOKKEEPING if params.get(key) is not None}
    given |= {key: bool(params.get(key)) for key in SWITCHES}
    build_spec = parse_build(params.get(BUILD_SPEC), BUILD_SPEC)
    return Order(config, run_id=run_id, build_spec=build_spec, **given)
