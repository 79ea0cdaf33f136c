"""The post of a dead man on this host: a shell that continues a stopped victim when nobody else does."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import weakref
from typing import Self

from fault.dead_man import RELEASE, STANDING, stand_by_program, words_of
from fault.errors import IdentityMismatch, NobodyStandsBy
from fault.identity import ProcessIdentity

# He only has to look at one process.
WITHIN_S = 30.0


class Post:
    """One that is taken. It is given up without a word when this object goes, or the process: then he stays as long as
    the victim is stopped."""

    def __init__(self, word: int) -> None:
        """`word`: the descriptor by which he is told to leave."""
        self._word = word
        self._give_up = weakref.finalize(self, os.close, word)

    @classmethod
    def take(cls, victim: ProcessIdentity, seconds: float) -> Self | None:
        """Returns when he is there; None for a victim that is gone. Raises IdentityMismatch or NobodyStandsBy."""
        try:
            shell = subprocess.Popen(
                ["sh", "-s"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # Nothing of whoever starts him: he outlives the end of all that bears the marks of a run.
                env={"PATH": os.environ.get("PATH", os.defpath)},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise NobodyStandsBy(f"pause: {victim} is not stopped, since no shell would continue it: {error}") from None
        assert shell.stdin is not None and shell.stdout is not None
        post = cls(os.dup(shell.stdin.fileno()))
        with shell.stdout:
            with contextlib.suppress(OSError), shell.stdin:
                shell.stdin.write(stand_by_program(victim, seconds).encode())
            said = shell.stdout.readline() if select.select([shell.stdout], [], [], WITHIN_S)[0] else b""
            if not said:
                shell.kill()
            shell.wait()
        match words_of(said.decode(errors="replace")):
            case [word] if word == STANDING:
                return post
            case ["gone"]:
                return None
            case ["mismatch", part, *detail]:
                raise IdentityMismatch(victim.pid, part, " ".join(detail))
        raise NobodyStandsBy(f"pause: {victim} is not stopped, since the shell that would continue it does not answer")

    def stands(self) -> bool:
        """Whether he is still there."""
        watch = select.poll()
        watch.register(self._word, select.POLLERR)
        return not watch.poll(0)

    def release(self) -> None:
        """Sends him home."""
        with contextlib.suppress(OSError):
            os.write(self._word, RELEASE.encode())
        self._give_up()
