"""The three kinds of failure that Faultline tells apart.

Each message is one line that names the offending key, process or file and says how to mend it.
The kind decides what a sweep does next: fail at once, try again, or measure again.
"""

# What every refusal of an older format says.
MIGRATE = "run scripts/migrate.py on its results folder, bundle or file"


class FaultlineError(Exception):
    """Base of the errors that are meant for the user's eyes; never raised itself."""


class ConfigError(FaultlineError):
    """The input is wrong. Nothing was started; trying again cannot help (exit code 2)."""


class InfrastructureError(FaultlineError):
    """A service, process or file was not there or broke. Trying again may help."""


class Cancelled(InfrastructureError):
    """The sweep that asked for the experiment was stopped; the record says so, and nothing is tried again."""


class InvalidMeasurement(FaultlineError):
    """The experiment ran, but a validity rule failed. The record is kept; measure again."""
