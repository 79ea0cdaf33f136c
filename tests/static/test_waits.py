"""Tests pass on a busy machine, where events come late: waits are long, and no test asserts speed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from faultline.system.settings import ROOT

# Seconds. A shorter bound than the first is a poll; the others are the least bounds of a wait and of a test.
POLL_S, EVENT_S, TEST_S = 1.0, 60.0, 600.0
WAITS = {
    "wait", "wait_until", "wait_procs", "join", "communicate", "run", "check_output", "check_call", "get", "result",
    "settimeout", "consume", "list_topics", "get_watermark_offsets",
}  # fmt: skip
POSITIONAL = {"wait", "join", "communicate", "settimeout"}
BOUNDS = {"timeout", "timeout_s"}
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
# The only module that may read command lines directly. A child first shows its parent's, so all others wait.
COMMAND_LINES = "tests/support/processes.py"


@cache
def trees() -> list[tuple[str, ast.Module]]:
    found = sorted((ROOT / "tests").rglob("*.py"))
    return [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())) for path in found]


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def number(node: ast.expr | None) -> float | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    return None


def reads_a_clock(node: ast.expr) -> bool:
    return any(isinstance(one, ast.Call) and name_of(one) in CLOCKS for one in ast.walk(node))


def bounds(tree: ast.Module) -> Iterator[tuple[int, float]]:
    """Yield line and seconds of every numeric bound: of waits, of loops with a deadline, and of parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node) in WAITS:
            given = [one.value for one in node.keywords if one.arg in BOUNDS]
            given += node.args if name_of(node) in POSITIONAL and len(node.args) == 1 else []
            yield from ((one.lineno, found) for one in given if (found := number(one)) is not None)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            later = number(node.right)
            if later is not None and isinstance(node.left, ast.Call) and name_of(node.left) == "monotonic":
                yield node.lineno, later
        if isinstance(node, ast.FunctionDef):
            parameters = [*node.args.posonlyargs, *node.args.args]
            positional = zip(parameters[::-1], node.args.defaults[::-1], strict=False)
            for parameter, default in (*positional, *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)):
                if parameter.arg in BOUNDS and (found := number(default)) is not None:
                    yield node.lineno, found


def test_no_wait_for_an_event_is_shorter_than_a_minute() -> None:
    short = [f"{path}:{line}: {s:g} s" for path, tree in trees() for line, s in bounds(tree) if POLL_S <= s < EVENT_S]
    assert not short, "\n".join(short)


def test_no_test_has_a_shorter_limit_than_its_waits() -> None:
    short = [
        f"{path}:{node.lineno}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "pytest.mark.timeout"
        and (number(node.args[0]) or TEST_S) < TEST_S
    ]
    assert not short, "\n".join(short)


def test_no_test_asserts_that_something_was_fast() -> None:
    """Speed is measured by benchmarks."""
    fast = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in trees()
        for asserted in ast.walk(tree)
        if isinstance(asserted, ast.Assert)
        for node in ast.walk(asserted.test)
        if isinstance(node, ast.Compare)
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
        if isinstance(operator, ast.Lt | ast.LtE) and reads_a_clock(left) and number(right) is not None
    ]
    assert not fast, "\n".join(fast)


def test_no_test_reads_command_lines_directly() -> None:
    early = [
        f"{path}:{node.lineno}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if path != COMMAND_LINES and isinstance(node, ast.Call) and name_of(node) == "cmdline"
    ]
    assert not early, "\n".join(early)


def test_the_rules_find_violations() -> None:
    program = "wait_until(ready, timeout_s=5)\nprocess.wait(10)\nuntil = time.monotonic() + 20\nlast.join(0.2)\n"
    assert [seconds for _, seconds in bounds(ast.parse(program)) if POLL_S <= seconds < EVENT_S] == [5, 10, 20]
    assert [seconds for _, seconds in bounds(ast.parse("def f(x, timeout_s=3.0): pass"))] == [3.0]
    assert Path(ROOT / COMMAND_LINES).exists()
