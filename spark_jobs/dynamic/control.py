"""The words that stages exchange on the control topic: signals of back-pressure, and tuples that failed."""

from __future__ import annotations

import json
from dataclasses import dataclass

VERSION = 1


@dataclass(frozen=True)
class Message:
    """`to`: the stage that is meant. `act`: of `pressure.Act`, or `failed`. `count`: tuples that failed."""

    sender: str
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
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
    plain = all(isinstance(word, str) for word in (message.sender, message.to, message.act))
    return message if plain and type(message.count) is int else None
