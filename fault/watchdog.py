"""A process that ends an act when nobody else does: it continues a paused victim, or undoes what was done to its host.

It is nobody's child and bears no mark, so that it outlives whoever started it, the way there and the end of the run. It
checks the victim once and keeps its pidfd. Then it waits for a release, the victim's end, or its time.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fault.errors import FaultError, WatchdogUnavailable, as_message, error_of
from fault.identity import ProcessIdentity, from_line, require_same, to_line
from fault.procfs import open_handle, read_process, send_signal, stat_of

if TYPE_CHECKING:
    from fault.host_faults import HostFault

# So often, a second apart, it looks for a pause that it has not seen, once nobody could release it any more.
UNSEEN_LOOKS, LOOK_S = 15, 1.0
# How often it tries, and how many seconds apart, when what it undoes holds still.
TRIES, APART_S = 30, 2.0
# Starting one takes a tenth of a second.
WITHIN_S = 30.0
# A wait that no kernel takes for an overflow.
_LONGEST_S = 600.0
_ROOT = Path(__file__).resolve().parents[1]
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from fault.watchdog import main; main()"


class Watchdog:
    """One that was started for a victim. It is given up without a word when this object goes, or the process: then it
    stays as long as the victim is stopped."""

    def __init__(self, word: int) -> None:
        """`word`: the descriptor by which it is released."""
        self._word = word
        self._give_up = weakref.finalize(self, os.close, word)

    def stands(self) -> bool:
        """Whether it is still there."""
        watch = select.poll()
        watch.register(self._word, select.POLLERR)
        return not watch.poll(0)

    def release(self) -> None:
        """Ends it; nothing is undone."""
        with contextlib.suppress(OSError):
            os.write(self._word, b"release\n")
        self._give_up()


# Starts one and returns when it stands, None where the victim is gone. `order`: after how many `seconds` it acts, and
# the `victim`, or `kind`, `name` and `asked` of an act on the host. Raises IdentityMismatch, ActRefused or
# WatchdogUnavailable.
Start = Callable[[Mapping[str, Any]], Watchdog | None]


def start(order: Mapping[str, Any]) -> Watchdog | None:
    """A `Start` in a fresh interpreter, which has nothing of whoever starts it."""
    try:
        made = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise WatchdogUnavailable(f"watchdog: it cannot be started: {error}") from None
    assert made.stdin is not None and made.stdout is not None and made.stderr is not None
    word = os.dup(made.stdin.fileno())
    with made.stdout, made.stderr:
        with contextlib.suppress(OSError), made.stdin:
            made.stdin.write(to_line(order))
        said = _first_line(made.stdout.fileno())
        if not said:
            made.kill()
        why = b"" if said else made.stderr.read()
        made.wait()
    return _started(word, said, why.decode(errors="replace").strip().rpartition("\n")[2])


def fork(order: Mapping[str, Any]) -> Watchdog | None:
    """A `Start` by forking, for a handler whose modules will be gone."""
    word, answers = detached(lambda: keep_watch(order))
    try:
        said = _first_line(answers)
    finally:
        os.close(answers)
    return _started(word, said, "")


def detached(work: Callable[[], None]) -> tuple[int, int]:
    """Runs `work` in a process that is nobody's child and has nothing open but its input and output; returns the other
    ends of both. Raises WatchdogUnavailable."""
    inner, outer = os.pipe(), os.pipe()
    if child := os.fork():
        os.close(inner[0])
        os.close(outer[1])
        if os.waitpid(child, 0)[1]:
            os.close(inner[1])
            os.close(outer[0])
            raise WatchdogUnavailable("watchdog: it cannot be started; look at the limit of processes")
        return inner[1], outer[0]
    code = 1
    try:
        os.setsid()
        if not os.fork():
            nothing = os.open(os.devnull, os.O_RDWR)
            for number, of in enumerate((inner[0], outer[1], nothing)):
                os.dup2(of, number)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            work()
        code = 0
    finally:
        os._exit(code)


def say_last(said: bytes) -> None:
    """Says a last word to whoever started this process, and closes its output."""
    with contextlib.suppress(OSError):
        os.write(1, said)
    os.dup2(2, 1)


def _first_line(answers: int) -> bytes:
    line = b""
    while not line.endswith(b"\n") and select.select([answers], [], [], WITHIN_S)[0]:
        if not (read := os.read(answers, 1 << 16)):
            break
        line += read
    return line


def _started(word: int, said: bytes, why: str) -> Watchdog | None:
    made = Watchdog(word)
    if not said.endswith(b"\n"):
        raise WatchdogUnavailable(f"watchdog: it does not answer{f' ({why})' if why else ''}")
    told = from_line(said)
    if "error" in told:
        raise error_of(told["error"]) or WatchdogUnavailable(f"watchdog: {told['error']['said']}")
    return made if told["stands"] else None


def main() -> None:
    """The program: its order comes as one line; cut off on its way, it does nothing."""
    line = b""
    while not line.endswith(b"\n"):
        if not (read := os.read(0, 1 << 16)):
            return
        line += read
    if not os.fork():
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)
        try:
            keep_watch(from_line(line))
        finally:
            os._exit(0)


def keep_watch(order: Mapping[str, Any]) -> None:
    """The life of a watchdog, from the word that it stands, on its output, to the undo."""
    deadline = time.monotonic() + float(order["seconds"])
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        paused = None
        if "victim" in order:
            paused = _Paused.find(order["victim"])
        else:
            # A third of the start, which a pause does without; the handler has it, whose modules may be gone by now.
            from fault.host_faults import act_of

            act = act_of(order["kind"], order["name"])
    except Exception as error:
        say_last(to_line({"error": as_message(error)}))
        return
    say_last(to_line({"stands": paused is not None or "victim" not in order}))
    if "victim" not in order:
        _sleep_until(deadline)
        _undo(act, order["name"], order["asked"])
    elif paused is not None and _await_time(paused, deadline):
        paused.resume()


class _Paused:
    """A victim: the process that its pidfd names, or where the kernel has none that began at the same tick."""

    def __init__(self, pid: int, handle: int | None, ticks: int | None) -> None:
        self.handle, self._pid, self._ticks = handle, pid, ticks

    @classmethod
    def find(cls, victim: ProcessIdentity) -> _Paused | None:
        """None for one that is gone. Raises IdentityMismatch."""
        try:
            handle = open_handle(victim.pid)
        except ProcessLookupError:
            return None
        live = read_process(victim.pid)
        if live is None:
            return None
        require_same(victim, live, by_ticks=True)
        return cls(victim.pid, handle, live.start_ticks)

    def state(self) -> str:
        """As the kernel calls it; empty when it has ended."""
        try:
            fields = stat_of(self._pid)
        except OSError:
            return ""
        return "" if fields[0] in "ZXx" or int(fields[19]) != self._ticks else fields[0]

    def is_stopped(self) -> bool:
        return self.state() in ("T", "t")

    def resume(self) -> None:
        """Continues it, if it is stopped."""
        if self.is_stopped():
            with contextlib.suppress(OSError):
                send_signal(self._pid, self.handle, signal.SIGCONT)


def _await_time(paused: _Paused, deadline: float) -> bool:
    """Whether its time came; else it was released, or is not needed any more.

    When whoever would release it has gone, it leaves as soon as the victim runs again, by whosever hand; also when the
    victim is not stopped within UNSEEN_LOOKS: by then nobody is left who would stop it, and a later pause is another's.
    """
    watch = select.poll()
    watch.register(0, select.POLLIN)
    if paused.handle is not None:
        watch.register(paused.handle, select.POLLIN)
    seen, looks, alone = False, UNSEEN_LOOKS, False
    while (rest := deadline - time.monotonic()) > 0:
        wait_s = LOOK_S if alone or paused.handle is None else _LONGEST_S
        for number, _ in watch.poll(1000 * min(rest, wait_s)):
            if number == paused.handle or os.read(0, 64):
                return False
            watch.unregister(0)
            alone = True
        if not (state := paused.state()):
            return False
        if alone:
            stopped = state in ("T", "t")
            if not stopped and (seen or looks <= 0):
                return False
            seen, looks = seen or stopped, looks - 1
    return True


def _undo(act: HostFault, name: str, asked: Mapping[str, Any]) -> None:
    """Undoes it again and again while it holds still."""
    for _ in range(TRIES):
        with contextlib.suppress(FaultError, OSError):
            act.undo(name, asked)
            if not act.holds(name, asked):
                return
        _sleep_until(time.monotonic() + APART_S)


def _sleep_until(deadline: float) -> None:
    while (rest := deadline - time.monotonic()) > 0:
        time.sleep(min(_LONGEST_S, rest))
