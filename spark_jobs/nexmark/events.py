"""Persons, auctions and bids, each derived from its number by column expressions.

The events follow the Nexmark suite (github.com/nexmark/nexmark, `NexmarkGenerator`): kinds in the proportions 1 : 3 :
46, ids that grow with the number, references to active entities, prices spread evenly over six powers of ten, and an
`extra` that brings an event to its average size. The suite seeds a random generator with the number. Here the values
are bits of hashes of the number, so each field can be computed independently, on any executor, in any order.
`generators/nexmark.py` generates the same events in numpy for Kafka; a test compares both.

Differences from the suite: a channel's id is another number with equally many digits, and a bidder is one of the active
persons (the suite adds 1,000 to a bidder twice, so that bids reference missing persons).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

FIRST_PERSON = 1000
FIRST_AUCTION = 1000
FIRST_CATEGORY = 10
CATEGORIES = 5
# References may be up to this number of ids ahead of the last one.
LEAD = 10
# Interval between hot ids.
HOT_EVERY = 100
CHANNELS = 10_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent",
          "Cheyenne")  # fmt: skip
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
# Bytes of an event's non-text fields as the suite counts them: 8 for longs and timestamps.
PERSON_FIXED, AUCTION_FIXED, BID_FIXED = 8, 48, 32
# Size of the text pools, which are literals in every plan.
POOL_BYTES = 4096
_POOLS = np.random.default_rng(20100801)
# Price tables: 100 · 10^(6i/64), and factors 10^(6j/4096) between two entries; linear between those.
_COARSE = tuple(float(f"{100 * 10 ** (6 * i / 64):.12g}") for i in range(64))
_FINE = tuple(float(f"{10 ** (6 * j / 4096):.12g}") for j in range(64))
STEP = float(f"{10 ** (6 / 4096) - 1:.12g}")
# Constants that derive a channel's id from its number.
ID_FACTOR, ID_MODULUS = 2_654_435_761, 2_147_483_647

KINDS = ("person", "auction", "bid")
PERSON = ("id", "name", "emailAddress", "creditCard", "city", "state", "dateTime", "extra")
AUCTION = ("id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires", "seller", "category",
           "extra")  # fmt: skip
BID = ("auction", "bidder", "price", "channel", "url", "dateTime", "extra")


def _pool(special: str) -> bytes:
    """Return letters, one in 13 of them `special`; without `special`, letters only."""
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)[_POOLS.integers(26, size=POOL_BYTES)]
    text = letters.copy()
    if special:
        text[_POOLS.integers(13, size=POOL_BYTES) == 0] = ord(special)
    return text.tobytes()


_LETTERS, _WORDS, _PATH = _pool(""), _pool(" "), _pool("_")


def _folders(depth: int) -> tuple[str, ...]:
    """Return 100 paths of `depth` folders, each of three or four characters."""
    ends = _POOLS.integers(3, 5, size=(100, depth))
    starts = _POOLS.integers(POOL_BYTES - 5, size=(100, depth))
    return tuple(
        "/".join(_PATH[start : start + length].decode() for start, length in zip(*path, strict=True))
        for path in zip(starts, ends, strict=True)
    )


# Their combinations give one address per channel.
_FIRST_FOLDER, _OTHER_FOLDERS = _folders(1), _folders(2)
_SITE, _PAGE = "https://www.nexmark.com/", "/item.htm?query=1"
_HOT_URLS = tuple(f"{_SITE}{path}{_PAGE}" for path in _folders(3)[: len(HOT_CHANNELS)])


@dataclass(frozen=True)
class EventRules:
    """Parameters of the events; the defaults are the suite's.

    `rate`: events per second of event time. `curve`: pieces (start second, end second, rate at start, rate at end) of a
    variable rate; the last rate continues. `disorder`: share of the events whose time is moved back, by at most half of
    `watermark_s`. Sizes are mean bytes.
    """

    seed: int = 1
    rate: float = 100_000.0
    proportions: tuple[int, int, int] = (1, 3, 46)
    sizes: tuple[int, int, int] = (200, 500, 100)
    hot_auctions: int = 2
    hot_sellers: int = 4
    hot_bidders: int = 4
    in_flight: int = 100
    active_people: int = 1000
    disorder: float = 0.0
    watermark_s: float = 4.0
    start_ms: int = 1_760_000_000_000
    curve: tuple[tuple[float, float, float, float], ...] = field(default=())

    @classmethod
    def of(cls, given: dict[str, Any]) -> EventRules:
        """Build it from JSON values, where tuples are lists."""
        return cls(**{key: _tupled(value) for key, value in given.items()})

    @property
    def total(self) -> int:
        """Events in one round of the proportions."""
        return sum(self.proportions)


def _tupled(value: Any) -> Any:
    return tuple(_tupled(one) for one in value) if isinstance(value, list) else value


class NexmarkEventSource:
    """The three streams as DataFrames, from one with the column `n`, the number of an event (long).

    A generator makes all events, even if only some kinds are read. Therefore events of kinds that are not among `reads`
    are computed and dropped within the first stream that is read.
    """

    def __init__(self, numbers: DataFrame, rules: EventRules, reads: Sequence[str] = KINDS) -> None:
        self._numbers, self._rules, self._reads = numbers, rules, reads

    def person(self) -> DataFrame:
        """Return the columns PERSON and `n`."""
        return self._made("person")

    def auction(self) -> DataFrame:
        """Return the columns AUCTION and `n`."""
        return self._made("auction")

    def bid(self) -> DataFrame:
        """Return the columns BID and `n`."""
        return self._made("bid")

    def as_json(self) -> DataFrame:
        """Return `n` and `value`: each event as a JSON object with `n`, `dateTime` and its kind, in the given order.

        Times are ms since 1970. `extra` is text that no compression shortens much, unlike cuts from a small pool.
        """
        value = F.lit(None).cast("string")
        for kind in KINDS:
            fields = self._fields(kind)
            at = F.unix_millis(fields.pop("dateTime"))
            if "expires" in fields:
                fields["expires"] = F.unix_millis(fields["expires"])
            fields["extra"] = _random_text(F.length(fields["extra"]))
            own = F.struct(*(column.alias(name) for name, column in fields.items())).alias(kind)
            event = F.to_json(F.struct(F.col("n"), at.alias("dateTime"), own))
            value = F.when(self._is(kind), event).otherwise(value)
        return self._numbers.select("n", value.alias("value"))

    def _person(self) -> dict[str, Column]:
        rules = self._rules
        a, b, c = (_hash(rules, salt) for salt in (1, 2, 3))
        name = F.concat_ws(" ", _one_of(FIRST_NAMES, _bits(a, 0, 16)), _one_of(LAST_NAMES, _bits(a, 16, 16)))
        email = F.concat(_text(_WORDS, b, 7), F.lit("@"), _text(_WORDS, c, 5), F.lit(".com"))
        card = F.concat_ws(" ", *(F.lpad((_bits(c, at, 16) % 10_000).cast("string"), 4, "0") for at in (16, 28, 40)),
                           F.lpad((_bits(b, 40, 16) % 10_000).cast("string"), 4, "0"))  # fmt: skip
        fields = {
            "id": _last(rules, 0) + FIRST_PERSON,
            "name": name,
            "emailAddress": email,
            "creditCard": card,
            "city": _one_of(CITIES, _bits(a, 32, 16)),
            "state": _one_of(STATES, _bits(a, 48, 15)),
            "dateTime": F.timestamp_millis(_time_ms(rules)),
        }
        lengths = (F.length(fields[name]) for name in ("name", "emailAddress", "creditCard", "city", "state"))
        rest = F.lit(rules.sizes[0] - PERSON_FIXED) - reduce(add, lengths)
        return {**fields, "extra": _extra(_hash(rules, 4), rest)}

    def _auction(self) -> dict[str, Column]:
        rules = self._rules
        a, b, c = (_hash(rules, salt) for salt in (5, 6, 7))
        last_person = _last(rules, 0)
        hot = _floor(last_person)
        seller = F.when(_bits(a, 0, 16) % rules.hot_sellers > 0, hot).otherwise(_person(rules, _bits(a, 16, 24)))
        first = _price(b)
        # The suite's horizon: the start of the last auction in flight.
        ahead = rules.in_flight * rules.total // max(rules.proportions[1], 1)
        horizon = F.greatest(_at(rules, F.col("n") + ahead) - _at(rules, F.col("n")), F.lit(0)) * 2
        length = F.lit(1) + _bits(a, 40, 23) % F.greatest(horizon, F.lit(1))
        name, description = _text(_WORDS, _hash(rules, 8), 20), _text(_WORDS, c, 100)
        fields = {
            "id": _last(rules, 1) + FIRST_AUCTION,
            "itemName": name,
            "description": description,
            "initialBid": first,
            "reserve": first + _price(_hash(rules, 9)),
            "dateTime": F.timestamp_millis(_time_ms(rules)),
            "expires": F.timestamp_millis(_time_ms(rules) + length),
            "seller": seller + FIRST_PERSON,
            "category": F.lit(FIRST_CATEGORY) + _bits(b, 0, 10) % CATEGORIES,
        }
        rest = F.lit(rules.sizes[1] - AUCTION_FIXED) - F.length(name) - F.length(description)
        return {**fields, "extra": _extra(_hash(rules, 10), rest)}

    def _bid(self) -> dict[str, Column]:
        rules = self._rules
        a, b = _hash(rules, 11), _hash(rules, 12)
        last_auction = _last(rules, 1)
        # The oldest auction in flight, and the range of those after it.
        oldest = F.greatest(last_auction - rules.in_flight, F.lit(0))
        any_auction = oldest + _bits(a, 16, 24) % (last_auction - oldest + 1 + LEAD)
        auction = F.when(_bits(a, 0, 8) % rules.hot_auctions > 0, _floor(last_auction)).otherwise(any_auction)
        hot_bidder = _floor(_last(rules, 0)) + 1
        bidder = F.when(_bits(a, 8, 8) % rules.hot_bidders > 0, hot_bidder).otherwise(_person(rules, _bits(a, 40, 23)))
        number = _bits(b, 2, 30) % CHANNELS
        hot = _bits(b, 16, 1) > 0
        channel = F.when(hot, _one_of(HOT_CHANNELS, _bits(b, 0, 2)))
        fields = {
            "auction": auction + FIRST_AUCTION,
            "bidder": bidder + FIRST_PERSON,
            "price": _price(_hash(rules, 13)),
            "channel": channel.otherwise(F.concat(F.lit("channel-"), number.cast("string"))),
            "url": F.when(hot, _one_of(_HOT_URLS, _bits(b, 0, 2))).otherwise(_url(number)),
            "dateTime": F.timestamp_millis(_time_ms(rules)),
        }
        return {**fields, "extra": _extra(b, F.lit(rules.sizes[2] - BID_FIXED))}

    def _made(self, kind: str) -> DataFrame:
        """Return the events of a kind, with all fields, even if they are not read.

        The filter uses every field, and drops one event in 2^64. `spark_partition_id` is nondeterministic, so the
        optimiser neither moves the filter below the fields nor recomputes them above it.
        """
        rows = self._numbers
        if kind == self._reads[0]:
            for other in (one for one in KINDS if one not in self._reads):
                # CASE, because Spark evaluates common subexpressions of an OR for every row.
                computed = F.when(self._is(other), F.xxhash64(*self._fields(other).values()))
                rows = rows.where(computed.otherwise(F.spark_partition_id()) == F.spark_partition_id())
        fields = self._fields(kind)
        made = rows.where(self._is(kind)).select("n", *(column.alias(name) for name, column in fields.items()),
                                                 F.spark_partition_id().alias("made_in"))  # fmt: skip
        return made.where(F.xxhash64(*fields) != F.col("made_in")).drop("made_in")

    def _fields(self, kind: str) -> dict[str, Column]:
        return {"person": self._person, "auction": self._auction, "bid": self._bid}[kind]()

    def _is(self, kind: str) -> Column:
        place = KINDS.index(kind)
        start, turn = sum(self._rules.proportions[:place]), F.col("n") % self._rules.total
        return (turn >= start) & (turn < start + self._rules.proportions[place])


def _hash(rules: EventRules, salt: int) -> Column:
    """Return 64 bits that depend only on seed, number and salt."""
    return F.xxhash64(F.col("n"), F.lit(rules.seed * 64 + salt))


def _bits(word: Column, at: int, width: int) -> Column:
    """Return `width` bits of a hash as a non-negative number."""
    return F.shiftrightunsigned(word, at).bitwiseAND(F.lit((1 << width) - 1))


def _one_of(values: tuple[str, ...], draw: Column) -> Column:
    return F.element_at(F.array(*(F.lit(value) for value in values)), (draw % len(values)).cast("int") + 1)


def _looked_up(values: tuple[float, ...], place: Column) -> Column:
    return F.element_at(F.array(*(F.lit(value) for value in values)), place.cast("int") + 1)


def _cut(pool: bytes, at: Column, length: Column) -> Column:
    """Return `length` bytes of the pool; bytes, because positions in strings need a scan from the start."""
    return F.substring(F.lit(pool), at.cast("int") + 1, length.cast("int")).cast("string")


def _text(pool: bytes, word: Column, longest: int) -> Column:
    """Return 3 to `longest` - 1 characters."""
    length = _bits(word, 0, 16) % (longest - 3) + 3
    return _cut(pool, _bits(word, 16, 12) % (POOL_BYTES - longest), length)


def _extra(word: Column, rest: Column) -> Column:
    """Return letters that fill the event to its mean size, within 20 %."""
    length = F.greatest((rest * (F.lit(0.8) + _bits(word, 48, 16) * (0.4 / 65536))).cast("int"), F.lit(0))
    return _cut(_LETTERS, _bits(word, 32, 16) % (POOL_BYTES - 1024), length)


def _random_text(length: Column) -> Column:
    """Return up to 516 random characters of base64."""
    parts = (F.unhex(F.sha2(F.concat(F.col("n").cast("string"), F.lit(f" {part}")), 512)) for part in range(6))
    return F.substring(F.regexp_replace(F.concat(*(F.base64(part) for part in parts)), "=", ""), F.lit(1), length)


def _price(word: Column) -> Column:
    """Return the price in cents, up to 10^8, with a uniform logarithm.

    Two tables with linear interpolation give equal results on every processor; Spark's `exp` and `round` take ten times
    as long.
    """
    power = _looked_up(_COARSE, _bits(word, 58, 6)) * _looked_up(_FINE, _bits(word, 52, 6))
    return F.floor(power * (F.lit(1.0) + _bits(word, 20, 32) * (STEP / 2**32)) + 0.5)


def _url(number: Column) -> Column:
    """Return the address of a channel below 10,000, with three unique folders; 90 % contain the channel's id."""
    first, others = _one_of(_FIRST_FOLDER, number), _one_of(_OTHER_FOLDERS, _quotient(number, len(_FIRST_FOLDER)))
    parts = (F.lit(_SITE), first, F.lit("/"), others)
    named = F.concat(*parts, F.lit(f"{_PAGE}&channel_id="), (number * ID_FACTOR % ID_MODULUS).cast("string"))
    return F.when(number % 10 > 0, named).otherwise(F.concat(*parts, F.lit(_PAGE)))


def _floor(last: Column) -> Column:
    """Return the hot id among the newest hundred."""
    return last - last % HOT_EVERY


def _person(rules: EventRules, draw: Column) -> Column:
    """Return one of the active persons, or one of the next few."""
    people = _last(rules, 0) + 1
    active = F.least(people, F.lit(rules.active_people))
    return people - active + draw % (active + LEAD)


def _last(rules: EventRules, kind: int) -> Column:
    """Return the newest id (from 0) of persons (0) or auctions (1) at event `n`; 0 before the first."""
    start, share = sum(rules.proportions[:kind]), rules.proportions[kind]
    n = F.col("n")
    turn = (n % rules.total).cast("int")
    done = F.least(F.greatest(turn - (start - 1), F.lit(0)), F.lit(share))
    return F.greatest(_quotient(n, rules.total) * share + done - 1, F.lit(0).cast("long"))


def _quotient(value: Column, by: int) -> Column:
    return F.call_function("div", value, F.lit(by).cast("long"))


def _time_ms(rules: EventRules) -> Column:
    """Return the event time of event `n` in ms since 1970; some are moved back."""
    at, furthest = _at(rules, F.col("n")), int(rules.watermark_s * 500)
    if not rules.disorder or not furthest:
        return at
    draw = _hash(rules, 17)
    return at - F.when(_bits(draw, 0, 24) < int(rules.disorder * 2**24), _bits(draw, 24, 24) % furthest).otherwise(0)


def _at(rules: EventRules, place: Column) -> Column:
    """Return the event time in ms of a position in the stream, at the rate or under its curve."""
    if not rules.curve:
        return F.lit(rules.start_ms) + (place * (1000.0 / rules.rate)).cast("long")
    seconds = None
    before = 0.0
    for low, high, first, last in rules.curve:
        within = place - before
        slope = (last - first) / (high - low)
        # Solves first·t + slope·t²/2 = within, in a form that includes a slope of 0.
        at = F.lit(low) + (within * 2) / (F.lit(first) + F.sqrt(F.greatest(F.lit(first * first) + within * (2 * slope),
                                                                           F.lit(0.0))))  # fmt: skip
        seconds = at if seconds is None else F.when(place < before, seconds).otherwise(at)
        before += (first + last) / 2 * (high - low)
    assert seconds is not None
    ends = rules.curve[-1]
    after = F.lit(ends[1]) + (place - before) / ends[3]
    return F.lit(rules.start_ms) + (F.when(place < before, seconds).otherwise(after) * 1000.0).cast("long")
