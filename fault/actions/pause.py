"""SIGSTOP, and SIGCONT at the end: the victim stands still and keeps what it has."""

from __future__ import annotations

import signal

from fault.action import Action
from fault.identity import VICTIMS
from fault.injector import Presence
from fault.parameters import DURATION, Parameter
from fault.signals import Signals

ACTION = Action(
    name="pause",
    order=30,
    targets=VICTIMS,
    does="sends SIGSTOP, and SIGCONT at its end",
    past="paused",
    when="with {victim} paused for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0),),
    by_hand="continue it by hand with kill -CONT",
    hands=Signals(signal.SIGSTOP, shows=Presence.STOPPED),
)
