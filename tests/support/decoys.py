"""Decoys: processes that resemble those of Faultline."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping

import pytest

OTHER_UID = 65534
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can have another user's process")


@contextlib.contextmanager
def decoy(
    *arguments: str,
    user: int | None = None,
    environment: Mapping[str, str] | None = None,
    program: str = "echo up; read x",
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process with these arguments and variables, optionally of another user.

    Fails if the process has ended at the end of the block.
    """
    other = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    process = subprocess.Popen(
        ["sh", "-c", program, "sh", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], **(environment or {})},
        cwd="/",
        **other,  # type: ignore[call-overload]
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        yield process
        assert process.poll() is None, "the decoy was killed"
    finally:
        process.kill()
        process.communicate()
