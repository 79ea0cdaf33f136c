"""Stock streams keep schemas, shares and the prices of one market, in any chunks."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import generators
from generators.send_progress import InputError
from generators.stock import DAILY, DAY_MS, LATE_MS, ROUND_MS, SPREAD, STREAMS, Market, StockStreams, read_closes
from generators.stream import make_source
from generators.zipf import estimate_exponent
from tests.unit.generators.conftest import spec_of

OPEN = datetime(2013, 3, 1, 14, 30, tzinfo=UTC)
SCHEMAS = {
    name: json.loads((Path(generators.__file__).parent / "schemas" / f"{name.lower()}.json").read_text())
    for name in STREAMS
}
FORMS = {
    "STOCK": r'\{"stream":"STOCK","szcode":"[^"]+","eventTime":"[^"]+","lastPrice":\d+\.\d\d\}',
    "TRANSACTION": r'\{"stream":"TRANSACTION","szcode":"[^"]+","userID":\d+,"eventTime":"[^"]+",'
    r'"Turnover":\d+,"Price":\d+\.\d\d\}',
    "POSITION": r'\{"stream":"POSITION","userID":\d+,"szcode":"[^"]+","eventTime":"[^"]+",'
    r'"lastPrice":\d+\.\d\d,"openInterest":\d+\}',
}
N = 20_000


def source(**values: Any) -> StockStreams:
    made = make_source(spec_of(**{"source": "stock", "seconds": 60, **values}))
    assert isinstance(made, StockStreams)
    return made


def numbers(n: int, first: int = 0) -> Any:
    return np.arange(first, first + n, dtype=np.uint64)


def read(payloads: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(payload, parse_float=Decimal) for payload in payloads]


@cache
def records(*streams: str) -> list[dict[str, Any]]:
    return read(source(streams=streams).payloads(numbers(N)))


def event_ms(record: dict[str, Any]) -> int:
    since = datetime.strptime(record["eventTime"], "%Y-%m-%dT%H:%M:%S.%f%z") - OPEN
    return round(since.total_seconds() * 1000)


@cache
def market(stocks: int = 100) -> Market:
    return Market(stocks, read_closes())


def price(szcode: str, *moments_ms: int, stocks: int = 100) -> list[Decimal]:
    listing = np.full(len(moments_ms), market(stocks).szcodes.index(szcode.encode()), dtype=np.int64)
    return [Decimal(c) / 100 for c in market(stocks).cents(listing, np.array(moments_ms, dtype=np.int64)).tolist()]


@pytest.mark.parametrize("streams", [("STOCK",), ("TRANSACTION",), ("POSITION",), ("STOCK", "POSITION"), STREAMS])
def test_every_payload_keeps_its_schema(streams: tuple[str, ...]) -> None:
    made = source(streams=streams, stocks=7000, users=10**7, rate=90_000, seconds=10_000, late=0.1)
    validators = {name: jsonschema.Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
    payloads = made.payloads(numbers(2000, 8 * 10**8)) + list(made.preload(300))
    for payload in payloads:
        value = json.loads(payload)
        validators[value["stream"]].validate(value)
        # A schema cannot check decimals, spaces and key order.
        assert re.fullmatch(FORMS[value["stream"]], payload.decode()), payload
    assert {json.loads(payload)["stream"] for payload in payloads} == set(streams)


def test_the_schemas_are_schemas_and_refuse() -> None:
    for name, schema in SCHEMAS.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        good = json.loads(source(streams=[name]).payloads(numbers(1))[0])
        for key in good:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({k: v for k, v in good.items() if k != key}, schema)
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({**good, key: None}, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**good, "more": 1}, schema)


@pytest.mark.parametrize("streams", [("STOCK", "POSITION"), STREAMS, ("TRANSACTION", "POSITION")])
def test_stream_shares(streams: tuple[str, ...]) -> None:
    seen = Counter(record["stream"] for record in records(*streams))
    others = len(streams) - ("STOCK" in streams)
    for name in streams:
        share = (0.2 if name == "STOCK" else 0.8 / others) if "STOCK" in streams else 1 / others
        assert abs(seen[name] - share * N) <= 4 * (N * share * (1 - share)) ** 0.5


def test_streams_reach_all_partitions_equally() -> None:
    quotes = [k for k, record in enumerate(records("STOCK", "POSITION")) if record["stream"] == "STOCK"]
    for partitions in (2, 5, 10):
        seen = np.bincount(np.array(quotes) % partitions, minlength=partitions)
        assert abs(seen - len(quotes) / partitions).max() < 5 * (len(quotes) / partitions) ** 0.5


@pytest.mark.parametrize(
    ("watermark_s", "disorder", "late"), [(5.0, 0.1, 0.01), (0.5, 0.5, 0.5), (5.0, 0, 0), (0, 0.3, 0.2), (7.0, 1, 0)]
)
def test_shares_and_bounds_of_disorder_and_lateness(watermark_s: float, disorder: float, late: float) -> None:
    made = source(watermark_s=watermark_s, disorder=disorder, late=late)
    due_ms = [k * 2 for k in range(N)]  # 500 records/s
    early = np.array(due_ms) - [event_ms(record) for record in read(made.payloads(numbers(N)))]
    most = int(watermark_s * 500)
    assert set(np.unique(early[early > most])) <= {LATE_MS}
    assert early.min() == (0 if disorder + late < 1 else 1)
    lates, shifted = (early == LATE_MS).sum(), ((early > 0) & (early <= most)).sum()
    assert abs(lates - late * N) <= 4 * (N * late * (1 - late)) ** 0.5
    if most == 0:
        assert shifted == 0
    else:
        assert abs(shifted - disorder * N) <= 4 * (N * disorder * (1 - disorder)) ** 0.5
        if disorder:  # uniform over 1 … most
            some = early[(early > 0) & (early <= most)]
            assert abs(some.mean() - (most + 1) / 2) < 4 * most / (12 * len(some)) ** 0.5
            assert some.max() > 0.99 * most


def test_event_times_are_due_times_along_a_curve() -> None:
    ramp = {"kind": "ramp", "from_s": 0, "until_s": 20, "to": 900}
    wanted = spec_of(source="stock", seconds=60, disorder=0, late=0, rate_curve=ramp)
    schedule = wanted.schedule
    assert schedule is not None and schedule.count == 50_000
    found = [event_ms(record) for record in read(make_source(wanted).payloads(numbers(N)))]
    assert found == [schedule.due_ns(k) // 1_000_000 for k in range(N)]


def test_quotes_are_market_prices_and_trades_are_near() -> None:
    for record in records("STOCK", "POSITION")[:5000]:
        if record["stream"] == "STOCK":
            assert [record["lastPrice"]] == price(record["szcode"], event_ms(record))
    aside = []
    for record in records("TRANSACTION")[:5000]:
        [fair] = price(record["szcode"], event_ms(record))
        aside.append(float((record["Price"] - fair) / fair))
        assert abs(record["Price"] - fair) <= fair * Decimal(SPREAD) + Decimal("0.005")
    assert abs(np.mean(aside)) < SPREAD / 10 and np.std(aside) > SPREAD / 3  # to both sides
    assert {record["Turnover"] for record in records("TRANSACTION")} == set(range(100, 5001, 100))


def test_positions_are_valued_at_a_trade_of_their_user() -> None:
    """At most one trade per round, at one instant of the previous round; holdings change only there."""
    seen: dict[tuple[int, str], list[tuple[int, Decimal, int]]] = {}
    made = source(streams=["POSITION"], users=3, stocks=2, seconds=200)
    for record in read(made.payloads(numbers(N))):
        seen.setdefault((record["userID"], record["szcode"]), []).append(
            (event_ms(record), record["lastPrice"], record["openInterest"])
        )
    assert len(seen) == 6
    for (_, szcode), events in seen.items():
        events = sorted(event for event in events if event[0] >= 0)
        changes = [b[0] for a, b in zip(events, events[1:], strict=False) if a[1:] != b[1:]]
        assert len(changes) >= 1
        # Changes of one user and stock are whole rounds apart, except for the distance of two of its records.
        phases = np.array(changes) % ROUND_MS
        assert min(np.ptp(phases), np.ptp((phases + ROUND_MS // 2) % ROUND_MS)) < 500
        every = np.array([int(p * 100) for p in price(szcode, *range(-ROUND_MS, events[-1][0] + 1), stocks=2)])
        for at, last, shares in events:
            assert shares > 0 and (every[at + 1 : at + ROUND_MS + 1] == int(last * 100)).any()


def test_users_and_stocks_are_uniform() -> None:
    some = records(*STREAMS)
    users = Counter(record["userID"] for record in some if "userID" in record)
    assert set(users) == set(range(1, 1001)) and max(users.values()) < 5 * min(users.values()) + 20
    stocks = Counter(record["szcode"] for record in some)
    assert {code.encode() for code in stocks} == set(market().szcodes)
    assert max(stocks.values()) < 1.5 * min(stocks.values())


@pytest.mark.parametrize("skew", [0.0, 0.7, 1.3])
def test_skew_chooses_the_stocks_by_the_law(skew: float) -> None:
    stocks = Counter(record["szcode"] for record in read(source(skew=skew).payloads(numbers(N))))
    estimate, low, high = estimate_exponent([stocks[code.decode()] for code in market().szcodes])
    assert low <= skew <= high and high - low < 0.1 and abs(estimate - skew) < 0.05


def test_varying_skew_follows_the_due_time() -> None:
    curve = {"kind": "step", "at_s": 20, "to": 2}
    made = source(skew=0.5, skew_curve=curve)
    for first, exponent in ((0, 0.5), (10_000, 2.0)):
        counts = Counter(record["szcode"] for record in read(made.payloads(numbers(10_000, first))))
        _, low, high = estimate_exponent([counts[code.decode()] for code in market().szcodes])
        assert low <= exponent <= high
    plain = source(skew=0.5)
    assert made.payloads(numbers(10_000)) == plain.payloads(numbers(10_000))
    assert list(made.preload(100)) == list(plain.preload(100))


@pytest.mark.parametrize(("rate", "n"), [(500, 2000), (5, 2000), (0.1, 3), (500, 0), (40_000, 5000)])
def test_the_primer_happened_in_the_minute_before_the_opening(rate: float, n: int) -> None:
    found = [event_ms(record) for record in read(list(source(rate=rate, streams=STREAMS).preload(n)))]
    assert len(found) == n and found == sorted(found)
    if n:
        assert found[0] == -60_000 and found[-1] < 0
        if rate == 500:  # at the schedule's rate if that fits the minute
            assert found == [2 * k - 60_000 for k in range(n)]


def test_preload_makes_no_measured_record_late() -> None:
    wanted: dict[str, Any] = {"rate": 5, "watermark_s": 4.0, "disorder": 0.9, "late": 0.05}
    made = source(**wanted)
    watermark = max(event_ms(record) for record in read(list(made.preload(2000)))) - 4000
    for record in read(made.payloads(numbers(200))):
        late = event_ms(record) < -LATE_MS // 2
        assert late == (event_ms(record) < watermark)


def test_custom_price_file_is_used_and_a_damaged_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    with pytest.raises(InputError, match=r"^prices: reading .*own\.csv failed"):
        source(prices=str(path))
    path.write_text("szcode,date,close\nTIN,2013-02-28,7\nTIN,2013-03-01,7\n")
    records = source(prices=str(path), streams=("STOCK",), stocks=3).payloads(np.arange(3, dtype=np.uint64))
    assert all(b'"szcode":"TIN-00' in one and b'"lastPrice":7.00' in one for one in records)


CLOSES = read_closes()
MARKET = Market(103, CLOSES)
PRICES = "szcode,date,close\n"


def at(market: Market, listing: int, *moments_ms: int) -> list[int]:
    moments = np.array(moments_ms, dtype=np.int64)
    return market.cents(np.full(len(moments), listing, dtype=np.int64), moments).tolist()


def test_the_daily_file_holds_the_five_real_series() -> None:
    days = {symbol: len(closes) for symbol, closes in CLOSES.items()}
    assert days == {"AAPL": 3270, "FB": 196, "GOOG": 2148, "IBM": 3270, "MSFT": 3270}
    last = {symbol: int(closes[-1]) for symbol, closes in CLOSES.items()}
    assert last == {"AAPL": 4304700, "FB": 277800, "GOOG": 8061900, "IBM": 2029100, "MSFT": 279500}
    assert "2013-03-01,27.95" in DAILY.read_text()
    assert "public domain" in (DAILY.parent / "README.md").read_text()


def test_listings_alternate_series_and_start_at_different_days() -> None:
    assert MARKET.szcodes[:6] == [b"AAPL-000", b"FB-000", b"GOOG-000", b"IBM-000", b"MSFT-000", b"AAPL-001"]
    assert len(set(MARKET.szcodes)) == 103 and MARKET.szcodes[-1] == b"GOOG-020"
    assert Market(10_000, CLOSES).szcodes[-1] == b"MSFT-1999"
    for stocks, series in itertools.product((1, 4, 103, 900), range(5)):
        starts = Market(stocks, CLOSES)._start_ms[series::5] // DAY_MS
        assert len(set(starts.tolist())) == len(starts)


def test_first_listing_replays_its_series_by_day() -> None:
    closes = ((CLOSES["AAPL"] + 50) // 100).tolist()
    days = len(closes)
    assert at(MARKET, 0, *range(0, days * DAY_MS, DAY_MS)) == closes
    back = [at(MARKET, 0, (2 * (days - 1) - day) * DAY_MS)[0] for day in range(days)]
    assert back == closes  # and reverses at the end
    half = (CLOSES["AAPL"][0] + CLOSES["AAPL"][1]) / 200
    assert abs(at(MARKET, 0, DAY_MS // 2)[0] - half) <= 0.5


@given(st.integers(0, 102), st.integers(-4_000_000, 10**10))
def test_prices_are_continuous_between_closes(listing: int, moment_ms: int) -> None:
    series = CLOSES[sorted(CLOSES)[listing % 5]]
    now, soon = at(MARKET, listing, moment_ms, moment_ms + 1)
    low, high = np.minimum(series[:-1], series[1:]) - 50, np.maximum(series[:-1], series[1:]) + 50
    assert ((low <= now * 100) & (now * 100 <= high)).any()
    steepest = np.abs(np.diff(series)).max() / 100 / DAY_MS
    assert abs(soon - now) <= steepest + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: "),
        ("szcode,date\n", "line 1: "),
        (PRICES, "line 2: "),
        (f"{PRICES}A,2013-03-01\n", "line 2: "),
        (f"{PRICES}A,2013-03-01,1\n\n", "line 3: "),
        (f"{PRICES}a b,2013-03-01,1\n", "line 2: "),
        *((f"{PRICES}A,{day},1\n", "line 2: ") for day in ("01.03.2013", "2013-02-30")),
        *((f"{PRICES}A,2013-03-01,{x}\n", "line 2: ") for x in ("x", "nan", "-1", "0", "1e9")),
        (f"{PRICES}A,2013-03-01,1.00001\n", "line 2: "),
        (f"{PRICES}A,2013-03-01,0.001\n", "line 2: "),
        (f"{PRICES}A,2013-03-02,1\nA,2013-03-01,1\n", "line 3: "),
        (f"{PRICES}A,2013-03-01,1\nA,2013-03-01,1\n", "line 3: "),
        (f"{PRICES}B,2013-03-01,1\nA,2013-03-02,1\n", "line 3: "),
        (f"{PRICES}A,2013-03-01,1\n", "line 2: "),
    ],
)
def test_malformed_files_are_named_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=f"p.csv, {message}") as refusal:
        read_closes(path)
    assert "\n" not in str(refusal.value)


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none.csv failed: No such file"):
        read_closes(tmp_path / "none.csv")
    with pytest.raises(InputError, match="failed: Is a directory"):
        read_closes(tmp_path)
    (tmp_path / "p.csv").write_bytes(b"szcode,date,close\nA,2013-03-01,1\nA,2013-03-02,\xff\n")
    with pytest.raises(InputError, match="p.csv, line 3: .*UTF-8"):
        read_closes(tmp_path / "p.csv")
    # Windows line ends are accepted.
    (tmp_path / "p.csv").write_bytes(b"szcode,date,close\r\nA,2013-03-01,1.5\r\nA,2013-03-04,2.25\r\n")
    assert {symbol: days.tolist() for symbol, days in read_closes(tmp_path / "p.csv").items()} == {"A": [15000, 22500]}
