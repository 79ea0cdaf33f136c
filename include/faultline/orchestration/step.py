"""What the tasks of an experiment have in common: each is a step of one attempt."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.system.settings import load_settings

if TYPE_CHECKING:
    from faultline.experiment.attempt import Attempt

ALONE = "Airflow's process beside the task was ended, and the task with it; nothing of the experiment failed"


def step(function: Callable[[Attempt], Any]) -> Callable[[str], Any]:
    """A step of an attempt as the body of a task: refuses closed attempts, and keeps the reason of a failure."""

    @functools.wraps(function)
    def body(attempt_id: str) -> Any:
        from airflow.sdk.exceptions import AirflowFailException

        from faultline.lifecycle.teardown import note_failure, refuse_closed

        attempt, told = attempt_of(attempt_id), os.getppid()
        try:
            refuse_closed(attempt)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
        refuse_lost(attempt, function.__name__)
        try:
            return function(attempt)
        except FaultlineError as error:
            note_failure(attempt.folder, function.__name__, error)
            raise AirflowFailException(str(error)) from None
        except Exception as error:
            # Without the process that Airflow has beside a task nothing more can be told, and that is what failed.
            gone = os.getppid() != told
            note_failure(attempt.folder, function.__name__, InfrastructureError(ALONE) if gone else error)
            raise

    # The wrapper takes an id, not an attempt, so it must not show the wrapped signature.
    del body.__wrapped__
    body.__annotations__ = {"attempt_id": str, "return": Any}
    return body


def refuse_lost(attempt: Attempt, step: str) -> None:
    """Fails a step for good on what a machine left that went down, and keeps the reason."""
    from airflow.sdk.exceptions import AirflowFailException

    from faultline.lifecycle.teardown import note_failure, refuse_unfinished

    try:
        refuse_unfinished(attempt)
    except InfrastructureError as error:
        note_failure(attempt.folder, step, error)
        raise AirflowFailException(str(error)) from None


def attempt_of(attempt_id: str) -> Attempt:
    from faultline.experiment.attempt import Attempt

    return Attempt(load_settings().attempts / attempt_id)
