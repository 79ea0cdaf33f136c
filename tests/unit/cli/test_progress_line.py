"""Progress: one rewritten line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.cli import following as progress_line
from faultline.cli.following import CLEAR, Progress, ProgressLine

STATE = Progress("experiment 1 of 6: measuring", ", T0 + 33 s", "about 5 min left", "1 of 6 measuring")
COLUMNS = 60


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def line_on(out: io.StringIO, environment: Mapping[str, str]) -> tuple[ProgressLine, list[str]]:
    said: list[str] = []
    return ProgressLine(said.append, out, environment), said


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_line.shutil, "get_terminal_size", lambda: os.terminal_size((COLUMNS, 24)))


def test_on_a_terminal_one_line_is_rewritten_and_others_stay_above_it() -> None:
    out = Terminal()
    line, said = line_on(out, {"TERM": "xterm"})
    line.show(STATE)
    line.show(STATE)
    assert said == [] and out.getvalue().count(CLEAR) == 2 and "\n" not in out.getvalue()
    shown = out.getvalue().rpartition(CLEAR)[2]
    assert shown == "0:00 elapsed, about 5 min left: 1 of 6 measuring, T0 + 33 s"
    line.say("killed executor 1")
    assert said == ["killed executor 1"] and out.getvalue().endswith(CLEAR)
    line.show(STATE)
    line.clear()
    assert out.getvalue().endswith(CLEAR), "what comes next begins on an empty line"


@pytest.mark.parametrize(
    ("out", "environment"),
    [
        (io.StringIO(), {"TERM": "xterm"}),
        (Terminal(), {"TERM": "dumb"}),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}),
        (Terminal(), {}),
    ],
)
def test_elsewhere_a_line_is_printed_where_something_changes(
    out: io.StringIO, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, said = line_on(out, environment)
    line.show(STATE)
    line.show(Progress(STATE.head, ", T0 + 34 s", STATE.left))
    assert said == ["experiment 1 of 6: measuring, T0 + 33 s, about 5 min left"] and out.getvalue() == ""
    line.show(Progress("experiment 1 of 6: draining"))
    assert said[1:] == ["experiment 1 of 6: draining"]
    monkeypatch.setattr(progress_line, "REPEAT_S", -1.0)
    line.show(Progress("experiment 1 of 6: draining"))
    assert len(said) == 3, "long not said"


@given(st.text(alphabet=st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=200), st.integers(20, 200))
def test_a_line_never_wraps(head: str, columns: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress_line.shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24)))
        out = Terminal()
        line, _ = line_on(out, {"TERM": "xterm"})
        line.show(Progress(head))
    assert len(out.getvalue().removeprefix(CLEAR)) < columns
