"""The three kinds of failure.

Each message is one line that names the key, process or file and states the fix. The kind decides the next step of a
sweep: fail at once, retry, or measure again.
"""

# The fix in every error about an older format.
MIGRATE = "run scripts/migrate.py on its results folder, bundle or file"


class FaultlineError(Exception):
    """Base of errors that are shown to the user; only subclasses are raised."""


class ConfigError(FaultlineError):
    """Invalid input. Nothing was started; a retry cannot help (exit code 2)."""


class InfrastructureError(FaultlineError):
    """A missing or failed service, process or file. A retry may help."""


class Cancelled(InfrastructureError):
    """The experiment was cancelled because its sweep was stopped; the record states this, and there is no retry."""


class InvalidMeasurement(FaultlineError):
    """A violated validity rule. The record is kept; measure again."""
