"""Stock exchange: trades per window and stock, and prices joined with positions of users."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from pydantic import Field, field_validator

from fault.plan import PlannedFault
from faultline.experiment.common_parameters import Common, same_path_everywhere
from faultline.experiment.prerequisites import Prepared
from faultline.experiment.workloads.protocol import EventTime, Workload

BUILT_IN_PRICES = "five-companies"
# Upper bound on the windows of a record; each costs a row of state.
MAX_OVERLAP = 60
# Limit for window and watermark delay together: with longer ones, records that are an hour late might count.
MOST_KEPT_S = 1800.0
# Trades of the preload: one updates two windows, a line of text ten words, so twenty thousand rows as with text.
PRIMER_TRADES = 10_000


class StockParameters(EventTime):
    """Windows, late records, and the exchange."""

    window_s: float = Field(
        10.0, ge=1, le=3600, description="Window length of stock queries, in seconds (Range in Shi and others, 2020)."
    )
    slide_s: float = Field(
        5.0, ge=1, le=3600, description="Window slide in seconds (Slide in Shi and others, 2020); at most `window_s`."
    )
    late: float = Field(0.01, ge=0, le=1, description="Share of stock records sent one hour too old, to be dropped.")
    prices: str = Field(
        BUILT_IN_PRICES, description="`five-companies`, or a CSV file of daily closes (szcode,date,close)."
    )
    stocks: int = Field(
        100, ge=1, le=10_000, description="Number of listed stocks; `skew` makes their trade volume unequal."
    )
    users: int = Field(1000, ge=1, le=10_000_000, description="Number of users who trade and hold stocks.")

    @field_validator("prices")
    @classmethod
    def _same_prices_everywhere(cls, path: str) -> str:
        return same_path_everywhere(path, BUILT_IN_PRICES)


class StockGroupBy(Workload[StockParameters]):
    """Sum Price × Turnover per `szcode` over sliding windows; one state row per stock and window."""

    name = "stock_group_by"
    order = 30
    section = "Stock queries"
    parameters = StockParameters
    capabilities = frozenset({"skewed", "stateful", "event_time"})
    program = "stock"
    built_in_paths = MappingProxyType({"prices": BUILT_IN_PRICES})
    streams: tuple[str, ...] = ("TRANSACTION",)
    groups = "group"

    def check(self, own: StockParameters, common: Common) -> None:
        """Raise ValueError for invalid windows or shares of late records."""
        if own.slide_s > own.window_s:
            raise ValueError(f"slide_s: got {own.slide_s:g}; expected at most window_s ({own.window_s:g})")
        if own.window_s / own.slide_s > MAX_OVERLAP:
            raise ValueError(
                f"slide_s: got {own.window_s / own.slide_s:g} windows per record; expected at most {MAX_OVERLAP}; "
                "fix: raise slide_s or lower window_s"
            )
        if own.late and own.window_s + own.watermark_s > MOST_KEPT_S:
            raise ValueError(
                f"window_s: got {own.window_s:g} with watermark_s {own.watermark_s:g}; expected a sum of at most "
                f"{MOST_KEPT_S:g}, so that records of the last hour are late; fix: lower one, or set late to 0"
            )
        if own.disorder + own.late > 1:
            raise ValueError(f"late: got disorder + late = {own.disorder + own.late:g}; expected at most 1")

    def check_faults(self, own: StockParameters, common: Common, planned: Sequence[PlannedFault]) -> None:
        if common.commit_mode == "none" and own.late:
            raise ValueError(
                f"late: got {own.late:g} in commit mode none, where a new state has no watermark and counts late "
                "records; expected 0"
            )

    def source(self, own: StockParameters, common: Common, repetition: int) -> dict[str, Any]:
        return {
            "source": "stock",
            "streams": list(self.streams),
            "prices": own.prices,
            "stocks": own.stocks,
            "users": own.users,
            "watermark_s": own.watermark_s,
            "disorder": own.disorder,
            "late": own.late,
            "skew": common.skew or 0.0,
        }

    def primer_lines(self, own: StockParameters) -> int:
        return PRIMER_TRADES

    def tuples(self, own: StockParameters) -> dict[str, Any]:
        from generators.stock import LATE_MS  # imports numpy, which would delay every configuration

        return {"tuples": self.groups, "window_s": own.window_s, "slide_s": own.slide_s, "late_ms": LATE_MS}

    def program_configuration(self, prepared: Prepared, own: StockParameters, common: Common) -> dict[str, Any]:
        return {
            "query": self.groups,
            "window_s": own.window_s,
            "slide_s": own.slide_s,
            "watermark_s": own.watermark_s,
        }


class StockJoin(StockGroupBy):
    """Join POSITION with STOCK on `szcode` within sliding windows and sum lastPrice × openInterest per user."""

    name = "stock_join"
    order = 31
    streams = ("STOCK", "POSITION")
    groups = "join"
    # Each batch of a join has twice as many stages.
    warm_up_batches = 5

    def primer_lines(self, own: StockParameters) -> int:
        return Workload.primer_lines(self, own)


WORKLOADS = (StockGroupBy(), StockJoin())
