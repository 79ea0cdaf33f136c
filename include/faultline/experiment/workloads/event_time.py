"""What workloads over event time have in common."""

from __future__ import annotations

from pydantic import Field

from faultline.experiment.workloads.base import Parameters


class EventTime(Parameters):
    """How far event time may lag, and how many records come out of order."""

    watermark_s: float = Field(5.0, ge=0, le=3600, description="How far event time may lag before a record is late.")
    disorder: float = Field(
        0.1, ge=0, le=1, description="Share of records (stock, Nexmark) out of order, by at most half of watermark_s."
    )
