"""What the command line does around its commands."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# A command as a benchmark is one: it has begun something, and must end it.
PROGRAM = """
import sys, time
from faultline import cli

@cli.app.command()
def slow():
    try:
        print("begun", flush=True)
        time.sleep(600)
    finally:
        print("ended", flush=True)

sys.argv = ["faultline", "slow"]
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_ended_ends_what_it_began(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("ended\n", 1)
    assert err.startswith("faultline: interrupted")
