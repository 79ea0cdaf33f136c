"""Which records of a topic are copied, and what is kept of each."""

from __future__ import annotations

from typing import Any

from faultline.cli.recording import _row
from generators.producer import NUMBER, PHASE, PRIMER_KEY


class Message:
    """A record as the consumer gives it."""

    def __init__(self, key: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        self._key, self._headers = key, headers

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_795_608_000_000

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes:
        return b"v"

    def headers(self) -> list[tuple[str, bytes]]:
        return self._headers


def names_in(row: dict[str, Any] | None) -> list[str]:
    assert row is not None
    return [one["name"] for one in row["headers"]]


def test_only_what_faultline_sent_beside_a_schedule_is_left_out() -> None:
    """A user's own header may have any name, and any key may be a user's."""
    assert _row(Message(f"{PRIMER_KEY}0".encode(), [(PHASE, b"primer")])) is None
    assert _row(Message(b"user", [(PHASE, b"closing")])) is None, "of data that is replayed it has the data's key"
    assert names_in(_row(Message(b"user", [("phase", b"closing"), ("h", b"1")]))) == ["phase", "h"]
    assert names_in(_row(Message(f"{PRIMER_KEY}0".encode(), [("phase", b"primer")]))) == ["phase"]
    assert names_in(_row(Message(None, [(NUMBER, b"3")]))) == []
