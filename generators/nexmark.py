"""Nexmark events as JSON records: persons, auctions and bids, each a function of its number.

They equal the events of `spark_jobs/nexmark/events.py`, with the same rules and draws (bits of Spark's `xxhash64` of
number, seed and salt); a test compares both. The first events are preload; record k of the schedule is the k-th event
after them, so its event time follows theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from generators.counter_rng import Words, blocks, hash_int, hash_long, initial_hashes
from generators.pacing import SendSchedule

Ints = NDArray[np.int64]
Texts = list[bytes]

KINDS = ("person", "auction", "bid")
FIRST_PERSON = FIRST_AUCTION = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
LEAD, HOT_EVERY, CHANNELS = 10, 100, 10_000
HOT_CHANNELS = (b"Google", b"Facebook", b"Baidu", b"Apple")
STATES = tuple(b"AZ CA ID OR WA WY".split())
CITIES = tuple(b"Phoenix,Los Angeles,San Francisco,Boise,Portland,Bend,Redmond,Seattle,Kent,Cheyenne".split(b","))
FIRST_NAMES = tuple(b"Peter Paul Luke John Saul Vicky Kate Julie Sarah Deiter Walter".split())
LAST_NAMES = tuple(b"Shultz Abrams Spencer White Bartels Walton Smith Jones Noris".split())
PERSON_FIXED, AUCTION_FIXED, BID_FIXED = 8, 48, 32
POOL_BYTES = 4096
STEP = float(f"{10 ** (6 / 4096) - 1:.12g}")
ID_FACTOR, ID_MODULUS = 2_654_435_761, 2_147_483_647
# Event time from the last event to the closing events, in addition to the watermark delay and the longest auction.
CLOSING_MS = 60_000

_POOLS = np.random.default_rng(20100801)
_COARSE = np.array([float(f"{100 * 10 ** (6 * i / 64):.12g}") for i in range(64)])
_FINE = np.array([float(f"{10 ** (6 * j / 4096):.12g}") for j in range(64)])


def _pool(special: bytes) -> bytes:
    text = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)[_POOLS.integers(26, size=POOL_BYTES)].copy()
    if special:
        text[_POOLS.integers(13, size=POOL_BYTES) == 0] = ord(special)
    return text.tobytes()


_LETTERS, _WORDS, _PATH = _pool(b""), _pool(b" "), _pool(b"_")


def _folders(depth: int) -> tuple[bytes, ...]:
    ends = _POOLS.integers(3, 5, size=(100, depth))
    starts = _POOLS.integers(POOL_BYTES - 5, size=(100, depth))
    return tuple(
        b"/".join(_PATH[start : start + length] for start, length in zip(*path, strict=True))
        for path in zip(starts, ends, strict=True)
    )


_FIRST_FOLDER, _OTHER_FOLDERS = _folders(1), _folders(2)
_SITE, _PAGE = b"https://www.nexmark.com/", b"/item.htm?query=1"
_HOT_URLS = tuple(_SITE + path + _PAGE for path in _folders(3)[: len(HOT_CHANNELS)])


@dataclass(frozen=True)
class NexmarkRules:
    """Parameters of the events, with the names of `nexmark.events.NexmarkRules`, which explains them."""

    seed: int
    rate: float
    proportions: tuple[int, int, int]
    sizes: tuple[int, int, int]
    hot_auctions: int
    hot_sellers: int
    hot_bidders: int
    in_flight: int
    active_people: int
    disorder: float
    watermark_s: float
    start_ms: int = 1_760_000_000_000

    @property
    def total(self) -> int:
        """Number of events per cycle of the proportions."""
        return sum(self.proportions)


class NexmarkEvents:
    """A source of the events after the preload; record k is a function of the parameters."""

    def __init__(self, rules: NexmarkRules, schedule: SendSchedule | None, preload_count: int) -> None:
        """Set the number of preload events; without a schedule, event time follows from the number alone."""
        self._rules, self._schedule, self._preload_count = rules, schedule, preload_count

    def payloads(self, records: Words) -> Texts:
        """Return the events of the given schedule records (shape (n,)) as JSON."""
        numbers = records + np.uint64(self._preload_count)
        if self._schedule is None:
            return self.events(numbers, self.due_ms(numbers))
        begun = self.due_ms(np.array([self._preload_count], dtype=np.uint64))[0]
        return self.events(numbers, begun + self._schedule.due_of(records) // 1_000_000)

    def preload(self, n: int) -> Iterator[bytes]:
        """Yield the first n events; n must equal the number of preload events."""
        for numbers in blocks(n):
            yield from self.events(numbers, self.due_ms(numbers))

    def closing(self, total: int) -> Texts:
        """Return one cycle of events that close all windows, long after the `total` scheduled events."""
        numbers = np.arange(
            self._preload_count + total, self._preload_count + total + self._rules.total, dtype=np.uint64
        )
        numbers += np.uint64(-int(numbers[0]) % self._rules.total)
        last = 0 if self._schedule is None or not total else self._schedule.due_ns(total - 1)
        at = self.due_ms(np.array([self._preload_count], dtype=np.uint64)) + last // 1_000_000 + self.closing_ms
        return self.events(numbers, np.repeat(at, len(numbers)))

    @property
    def closing_ms(self) -> int:
        """Event time from the last event to the closing events, in ms."""
        rules = self._rules
        longest_auction_ms = 2000 * rules.in_flight * rules.total / max(rules.proportions[1], 1) / rules.rate
        return CLOSING_MS + int(rules.watermark_s * 1000 + longest_auction_ms)

    def due_ms(self, numbers: Words) -> Ints:
        """Return event times at the rate, in ms since 1970; shape (n,)."""
        passed: Ints = (numbers.astype(np.float64) * (1000.0 / self._rules.rate)).astype(np.int64)
        return self._rules.start_ms + passed

    def events(self, numbers: Words, at_ms: Ints) -> Texts:
        """Return the events of the given numbers as JSON; out-of-order events precede their `at_ms`."""
        turn = (numbers % np.uint64(self._rules.total)).astype(np.int64)
        kinds = np.searchsorted(np.cumsum(self._rules.proportions), turn, side="right")
        lines: Texts = [b""] * len(numbers)
        makers: tuple[Callable[[_EventDraws], Iterator[bytes]], ...] = (_persons, _auctions, _bids)
        for kind, make in enumerate(makers):
            indices = np.nonzero(kinds == kind)[0]
            if len(indices):
                drawn = _EventDraws(numbers[indices], at_ms[indices], self._rules)
                for index, line in zip(indices.tolist(), make(drawn), strict=True):
                    lines[index] = line
        return lines


class _EventDraws:
    """Random draws for events of one kind."""

    def __init__(self, numbers: Words, at_ms: Ints, rules: NexmarkRules) -> None:
        self.numbers, self.rules = numbers, rules
        furthest = int(rules.watermark_s * 500)
        if rules.disorder and furthest:
            draw = self.hash(17)
            moved = bits(draw, 0, 24) < int(rules.disorder * 2**24)
            at_ms = at_ms - np.where(moved, bits(draw, 24, 24) % furthest, 0)
        self.at_ms = at_ms

    def hash(self, salt: int) -> Words:
        return spark_hash(self.numbers, self.rules.seed * 64 + salt)

    def last(self, kind: int) -> Ints:
        """Return the newest id (from 0) of persons (0) or auctions (1)."""
        rules, n = self.rules, self.numbers.astype(np.int64)
        start, share = sum(rules.proportions[:kind]), rules.proportions[kind]
        done = np.clip(n % rules.total - (start - 1), 0, share)
        last: Ints = np.maximum(n // rules.total * share + done - 1, 0)
        return last

    def person(self, draw: Ints) -> Ints:
        """Return an active person, or one of the next few."""
        people = self.last(0) + 1
        active = np.minimum(people, self.rules.active_people)
        chosen: Ints = people - active + draw % (active + LEAD)
        return chosen


def _persons(drawn: _EventDraws) -> Iterator[bytes]:
    a, b, c = (drawn.hash(salt) for salt in (1, 2, 3))
    names = [
        b"%b %b" % pair
        for pair in zip(_pick(FIRST_NAMES, bits(a, 0, 16)), _pick(LAST_NAMES, bits(a, 16, 16)), strict=True)
    ]
    emails = [b"%b@%b.com" % pair for pair in zip(_text(b, 7), _text(c, 5), strict=True)]
    groups = [(bits(word, at, 16) % 10_000).tolist() for word, at in ((c, 16), (c, 28), (c, 40), (b, 40))]
    cards = [b"%04d %04d %04d %04d" % four for four in zip(*groups, strict=True)]
    cities, states = _pick(CITIES, bits(a, 32, 16)), _pick(STATES, bits(a, 48, 15))
    sizes = [sum(map(len, texts)) for texts in zip(names, emails, cards, cities, states, strict=True)]
    extra = _extra(drawn.hash(4), drawn.rules.sizes[0] - PERSON_FIXED - np.array(sizes, dtype=np.int64))
    form = (b'{"n":%d,"person":{"id":%d,"name":"%b","emailAddress":"%b","creditCard":"%b","city":"%b","state":"%b",'
            b'"dateTime":"%bZ","extra":"%b"}}')  # fmt: skip
    columns = (drawn.numbers.tolist(), (drawn.last(0) + FIRST_PERSON).tolist(), names, emails, cards, cities, states,
               _times(drawn.at_ms), extra)  # fmt: skip
    return map(form.__mod__, zip(*columns, strict=True))


def _auctions(drawn: _EventDraws) -> Iterator[bytes]:
    rules = drawn.rules
    a, b, c = (drawn.hash(salt) for salt in (5, 6, 7))
    last = drawn.last(0)
    seller = np.where(bits(a, 0, 16) % rules.hot_sellers > 0, last - last % HOT_EVERY, drawn.person(bits(a, 16, 24)))
    first = _prices(b)
    # Start of the last auction in flight, from the rate alone.
    ahead = rules.in_flight * rules.total // max(rules.proportions[1], 1)
    step, n = 1000.0 / rules.rate, drawn.numbers.astype(np.float64)
    horizon = ((n + ahead) * step).astype(np.int64) - (n * step).astype(np.int64)
    length = 1 + bits(a, 40, 23) % np.maximum(np.maximum(horizon, 0) * 2, 1)
    names, descriptions = _text(drawn.hash(8), 20), _text(c, 100)
    sizes = np.array([len(one) + len(other) for one, other in zip(names, descriptions, strict=True)], dtype=np.int64)
    extra = _extra(drawn.hash(10), rules.sizes[1] - AUCTION_FIXED - sizes)
    form = (b'{"n":%d,"auction":{"id":%d,"itemName":"%b","description":"%b","initialBid":%d,"reserve":%d,'
            b'"dateTime":"%bZ","expires":"%bZ","seller":%d,"category":%d,"extra":"%b"}}')  # fmt: skip
    columns = (
        drawn.numbers.tolist(), (drawn.last(1) + FIRST_AUCTION).tolist(), names, descriptions, first.tolist(),
        (first + _prices(drawn.hash(9))).tolist(), _times(drawn.at_ms), _times(drawn.at_ms + length),
        (seller + FIRST_PERSON).tolist(), (FIRST_CATEGORY + bits(b, 0, 10) % CATEGORIES).tolist(), extra,
    )  # fmt: skip
    return map(form.__mod__, zip(*columns, strict=True))


def _bids(drawn: _EventDraws) -> Iterator[bytes]:
    rules = drawn.rules
    a, b = drawn.hash(11), drawn.hash(12)
    last = drawn.last(1)
    oldest = np.maximum(last - rules.in_flight, 0)
    anyone = oldest + bits(a, 16, 24) % (last - oldest + 1 + LEAD)
    auction = np.where(bits(a, 0, 8) % rules.hot_auctions > 0, last - last % HOT_EVERY, anyone)
    people = drawn.last(0)
    hot_bidder = people - people % HOT_EVERY + 1
    bidder = np.where(bits(a, 8, 8) % rules.hot_bidders > 0, hot_bidder, drawn.person(bits(a, 40, 23)))
    numbers = (bits(b, 2, 30) % CHANNELS).tolist()
    hot, hot_indices = (bits(b, 16, 1) > 0).tolist(), bits(b, 0, 2).tolist()
    channels, urls = [], []
    for is_hot, index, number in zip(hot, hot_indices, numbers, strict=True):
        channels.append(HOT_CHANNELS[index] if is_hot else b"channel-%d" % number)
        urls.append(_HOT_URLS[index] if is_hot else _url(number))
    extra = _extra(b, np.full(len(numbers), rules.sizes[2] - BID_FIXED, dtype=np.int64))
    form = (
        b'{"n":%d,"bid":{"auction":%d,"bidder":%d,"price":%d,"channel":"%b","url":"%b","dateTime":"%bZ","extra":"%b"}}'
    )
    columns = (
        drawn.numbers.tolist(), (auction + FIRST_AUCTION).tolist(), (bidder + FIRST_PERSON).tolist(),
        _prices(drawn.hash(13)).tolist(), channels, urls, _times(drawn.at_ms), extra,
    )  # fmt: skip
    return map(form.__mod__, zip(*columns, strict=True))


def _url(number: int) -> bytes:
    parts = _SITE + _FIRST_FOLDER[number % 100] + b"/" + _OTHER_FOLDERS[number // 100 % 100] + _PAGE
    return parts + b"&channel_id=%d" % (number * ID_FACTOR % ID_MODULUS) if number % 10 else parts


def _pick(values: tuple[bytes, ...], draw: Ints) -> Texts:
    return [values[index] for index in (draw % len(values)).tolist()]


def _text(word: Words, longest: int) -> Texts:
    """Return texts of 3 to `longest` - 1 characters."""
    lengths = bits(word, 0, 16) % (longest - 3) + 3
    return _slice_pool(_WORDS, bits(word, 16, 12) % (POOL_BYTES - longest), lengths)


def _extra(word: Words, rest: Ints) -> Texts:
    lengths = np.maximum((rest * (0.8 + bits(word, 48, 16) * (0.4 / 65536))).astype(np.int64), 0)
    return _slice_pool(_LETTERS, bits(word, 32, 16) % (POOL_BYTES - 1024), lengths)


def _slice_pool(pool: bytes, starts: Ints, lengths: Ints) -> Texts:
    return [pool[start:end] for start, end in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]


def _prices(word: Words) -> Ints:
    power = _COARSE[bits(word, 58, 6)] * _FINE[bits(word, 52, 6)]
    prices: Ints = np.floor(power * (1.0 + bits(word, 20, 32) * (STEP / 2**32)) + 0.5).astype(np.int64)
    return prices


def _times(at_ms: Ints) -> Texts:
    """Return instants as 2025-10-09T08:53:20.123, without a zone."""
    texts: Texts = np.datetime_as_string(at_ms.astype("datetime64[ms]"), unit="ms").astype("S").tolist()
    return texts


def bits(word: Words, at: int, width: int) -> Ints:
    """Return `width` bits of a hash as a non-negative number."""
    found: Ints = ((word >> np.uint64(at)) & np.uint64((1 << width) - 1)).astype(np.int64)
    return found


def spark_hash(numbers: Words, salt: int) -> Words:
    """Return Spark's `xxhash64(number, salt)` for a long and an int, as 64 unsigned bits; shape (n,)."""
    hashed = hash_long(numbers, initial_hashes(len(numbers)))
    return hash_int(np.full(len(numbers), salt & 0xFFFFFFFF, dtype=np.uint64), hashed)


def rules_of(given: dict[str, Any]) -> NexmarkRules:
    """Return the rules from JSON values, where tuples are lists."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return NexmarkRules(**values)
