"""Leaves a random sample of a session of cosmic-ray to try, and marks its other mutants as skipped."""

from __future__ import annotations

import random
import sys
from argparse import ArgumentParser, Namespace

from cosmic_ray.tools.filters.filter_app import FilterApp
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import WorkerOutcome, WorkResult


class SampleFilter(FilterApp):
    """A filter such as those that cosmic-ray brings."""

    def description(self) -> str:
        return str(__doc__)

    def add_args(self, parser: ArgumentParser) -> None:
        parser.add_argument("size", type=int, help="mutants to try")
        parser.add_argument("--seed", type=int, default=1, help="of the draw (default: 1)")

    def filter(self, work_db: WorkDB, args: Namespace) -> None:
        # Their ids are random, so what they change gives the order: the same seed draws the same mutants.
        pending = sorted(work_db.pending_work_items, key=lambda item: str(item.mutations))
        random.Random(args.seed).shuffle(pending)
        result = WorkResult(output="not in the sample", worker_outcome=WorkerOutcome.SKIPPED)
        work_db.set_multiple_results([item.job_id for item in pending[args.size :]], result)


if __name__ == "__main__":
    sys.exit(SampleFilter().main())
