"""What the tasks of an experiment have in common: each is a step of one attempt."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from faultline.base.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.base.settings import load_settings

if TYPE_CHECKING:
    from faultline.base.attempt import Attempt


def step(function: Callable[[Attempt], Any]) -> Callable[[str], Any]:
    """A step of an attempt as the body of a task: refuses closed attempts, and keeps the reason of a failure."""

    @functools.wraps(function)
    def body(attempt_id: str) -> Any:
        from airflow.sdk.exceptions import AirflowFailException

        from faultline.runner.teardown import note_failure, refuse_closed

        attempt = attempt_of(attempt_id)
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
            note_failure(attempt.folder, function.__name__, error)
            raise

    # The wrapper takes an id, not an attempt, so it must not show the wrapped signature.
    del body.__wrapped__
    body.__annotations__ = {"attempt_id": str, "return": Any}
    return body


def refuse_lost(attempt: Attempt, step: str) -> None:
    """Fails a step for good on what a machine left that went down, and keeps the reason."""
    from airflow.sdk.exceptions import AirflowFailException

    from faultline.runner.teardown import note_failure, refuse_unfinished

    try:
        refuse_unfinished(attempt)
    except InfrastructureError as error:
        note_failure(attempt.folder, step, error)
        raise AirflowFailException(str(error)) from None


def attempt_of(attempt_id: str) -> Attempt:
    from faultline.base.attempt import Attempt

    return Attempt(load_settings().attempts / attempt_id)
