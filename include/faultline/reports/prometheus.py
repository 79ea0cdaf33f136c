"""Record counts and newest figures for Prometheus (text format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from faultline.comparison.config_points import Point, axes_of, groups_of, points_of
from faultline.experiment.nightly_file import is_nightly
from faultline.records.catalogue import metrics_in
from faultline.records.columns import Sheet
from faultline.records.index_entry import IndexEntry
from faultline.reports.pages.overview import active_runs
from faultline.reports.pages.site import STATUSES, ResultsSite

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Maximum number of configurations per sweep.
MAX_CONFIGURATIONS = 100

Sample = tuple[dict[str, str], float]


def prometheus_text(site: ResultsSite) -> str:
    """Return all metrics. Medians are over usable repetitions; unknown values are omitted."""
    site.index.refresh()
    matrices = [one for one in site.index.matrices() if one.name]
    families: list[tuple[str, str, list[Sample]]] = [
        ("faultline_records", "Records by matrix and status.", [
            ({"matrix": str(one.name), "status": status}, float(getattr(one, status)))
            for one in matrices for status in STATUSES
        ]),
        ("faultline_experiments_running", "Running and queued experiments.",
         [({}, float(len(active_runs(site))))]),
        ("faultline_newest_record_timestamp_seconds", "Measurement time of the newest record of a matrix.", [
            ({"matrix": str(one.name)}, instant) for one in matrices if (instant := _timestamp(one.last)) is not None
        ]),
        ("faultline_figure", "Medians of the newest sweep of each matrix, by build, configuration and metric.",
         list(_figures(site, [str(one.name) for one in matrices]))),
        ("faultline_night_valid_records", "Usable records of the newest nightly run of each DAG.",
         [({"night": name}, count) for name, count in _nightly_counts(site, [str(one.name) for one in matrices])]),
    ]  # fmt: skip
    return "".join(_family(*one) for one in families)


def _figures(site: ResultsSite, matrices: Iterable[str]) -> Iterator[Sample]:
    for matrix in matrices:
        for sweep in site.index.sweeps_of(matrix, 1):
            entries = site.index.of_sweep(sweep)
            # A nightly run also measures its reference build.
            for group in groups_of(entries):
                labels = {"matrix": matrix, "sweep": sweep, "build": group}
                for cell, point in _cells([entry for entry in entries if entry.group == group]):
                    for metric in metrics_in(Sheet.WATCHED):
                        figure = point.figure(metric.key)
                        # Lower bounds are omitted.
                        if figure.median is not None and not figure.bound:
                            yield {**labels, "cell": cell, "figure": metric.key}, figure.median


def _cells(entries: Sequence[IndexEntry]) -> Iterator[tuple[str, Point]]:
    """Yield the configurations with a usable record, with their names."""
    points = [point for point in points_of(entries) if point.valid]
    axes = axes_of(points)
    for point in points[:MAX_CONFIGURATIONS]:
        yield ", ".join(f"{axis.name} {axis.label(point)}" for axis in axes) or point.config_id, point


def _nightly_counts(site: ResultsSite, matrices: Iterable[str]) -> Iterator[tuple[str, float]]:
    for matrix in matrices:
        if is_nightly(matrix):
            entries = [one for one in site.index.of_matrix(matrix) if one.logical_date]
            newest = max((str(one.logical_date) for one in entries), default="")
            yield matrix, float(sum(one.is_usable for one in entries if one.logical_date == newest))


def _timestamp(text: str) -> float | None:
    """Return the seconds since 1970; None for an invalid instant."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _family(name: str, text: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
    for labels, value in samples:
        pairs = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        lines.append(f"{name}{{{pairs}}} {value:.10g}" if pairs else f"{name} {value:.10g}")
    return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
