"""Random sample of a cosmic-ray session: all other mutants are marked as skipped."""

from __future__ import annotations

import random
import sys
from argparse import ArgumentParser, Namespace

from cosmic_ray.tools.filters.filter_app import FilterApp
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import WorkerOutcome, WorkResult


class SampleFilter(FilterApp):
    """Filter with the interface of cosmic-ray's own filters."""

    def description(self) -> str:
        return str(__doc__)

    def add_args(self, parser: ArgumentParser) -> None:
        parser.add_argument("size", type=int, help="number of mutants in the sample")
        parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")

    def filter(self, work_db: WorkDB, args: Namespace) -> None:
        # Job ids are random; because of the sorting by mutation, equal seeds draw equal mutants.
        pending = sorted(work_db.pending_work_items, key=lambda item: str(item.mutations))
        random.Random(args.seed).shuffle(pending)
        result = WorkResult(output="not in the sample", worker_outcome=WorkerOutcome.SKIPPED)
        work_db.set_multiple_results([item.job_id for item in pending[args.size :]], result)


if __name__ == "__main__":
    sys.exit(SampleFilter().main())
