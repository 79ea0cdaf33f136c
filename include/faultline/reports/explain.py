"""`./faultline explain RECORD`: the view of one run as text, and as a page with its plot."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from faultline.records.find import find_record
from faultline.records.format import WIDTH
from faultline.reports.terminal import render_run
from faultline.reports.views.run import RunView, run_view
from faultline.reports.views.series import are_known
from faultline.system.errors import ConfigError
from faultline.system.files import check_target
from faultline.system.settings import Settings


def explain(record_ref: str, settings: Settings, *, plot: Path | None = None) -> str:
    """The view of one record as text, and its page.

    `record_ref`: path of a record, attempt id, unique beginning of one, or `last`. `plot`: where the page goes, by
    default results/reports/<attempt>.html. Coloured only when standard output is a terminal. Raises ConfigError when
    there is no such record, or the given `plot` cannot be written.
    """
    view, page, problem = _explained(record_ref, settings, plot)
    terminal = sys.stdout.isatty()
    text = io.StringIO()
    width = Console().width if terminal else WIDTH
    # Whoever reads a pipe wants the text alone, whatever the environment says about colours.
    console = Console(file=text, width=width, force_terminal=terminal, color_system="auto" if terminal else None)
    console.print(render_run(view, width), highlight=False, crop=False)
    console.print(Text(f"\nPlot: {page}" if page else f"\nNo plot: {problem}"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def explain_json(record_ref: str, settings: Settings, *, plot: Path | None = None) -> dict[str, Any]:
    """The same facts as one JSON object; `plot` in it is the page's path, null when there is none."""
    view, page, _ = _explained(record_ref, settings, plot)
    return {**view.as_dict(), "plot": str(page) if page else None}


def _explained(record_ref: str, settings: Settings, plot: Path | None) -> tuple[RunView, Path | None, str]:
    """The view, its page, and why there is no page."""
    if plot is not None:
        check_target(plot, "--plot")
    record, results = find_record(record_ref, settings)
    view = run_view(record, results)
    if plot is None and not are_known(results / "attempts" / record.attempt):
        return view, None, f"attempts/{record.attempt}/series.json is missing"
    from faultline.reports.report import write_report

    target = plot or settings.results / "reports" / f"{record.attempt}.html"
    try:
        return view, write_report([record], results, target, title=f"Attempt {record.attempt}"), ""
    except OSError as error:
        problem = f"{target}: cannot be written ({error.strerror})"
        if plot is not None:
            raise ConfigError(f"--plot {problem}; give another file") from None
        return view, None, problem
