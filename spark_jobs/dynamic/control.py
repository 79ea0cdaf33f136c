"""The words that stages exchange on the control topic: signals of back-pressure, and tuples that failed."""

from __future__ import annotations

import json
from dataclasses import dataclass

VERSION = 1


@dataclass(frozen=True)
class Message:
    """`to`: the stage that is meant. `act`: of `pressure.Act`, with the steps that hold then as `count`; or `failed` or
    `set_aside`, with the tuples that were.
    """

    to: str
    act: str
    count: int = 0


def encode(message: Message) -> bytes:
    """The message as JSON, with the version of this format."""
    return json.dumps({"version": VERSION, **vars(message)}, separators=(",", ":")).encode()


def decode(value: bytes | None) -> Message | None:
    """The message, or None for what is not one of this version: whoever reads must survive anything."""
    try:
        words = json.loads(value or b"")
        if words.pop("version") != VERSION:
            return None
        message = Message(**words)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None
    plain = isinstance(message.to, str) and isinstance(message.act, str)
    return message if plain and type(message.count) is int and message.count >= 0 else None
