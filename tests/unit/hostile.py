"""Records with hostile texts in every place that accepts any text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pydantic import ValidationError

from faultline.records.record import Record
from tests.support.attempts import prepared
from tests.unit.pages_store import put
from tests.unit.sample_records import CENSORED, RECOVERED, sample

Way = tuple[str | int, ...]
# Delimiters of HTML, JavaScript, JSON, CSV, Markdown, SVG, Jinja and plotly templates, lines and paths; `hx` marks
# injected elements.
PIECES = (
    "<hx>", "</hx>", "<hx/onhx=1>", "</script><hx>", "<script>hx()</script>", "<!--hx-->", "]]>", "<![CDATA[<hx>]]>",
    "</title></style></textarea><hx>", '" onhx="1', "' onhx='1", "`onhx=1`", "<a href='javascript:hx'>hx</a>",
    '<a href="https://hx.invalid/">', "href='/site/hx'", "src='hx'", "&lt;hx&gt;", "&#60;hx&#62;", "&hx;", "%{x}",
    "{{ 7 * 7 }}", "{% hx %}", "${hx}", "=1+1", "@SUM(1)", "+1", "-1", "\t=hx", "|", "\\", "\\|", "`", "**", " _hx_ ",
    "[hx](javascript:hx)", "![hx](https://hx.invalid)", "\n", "\r\n", "\n# hx\n", "\n- hx", ", ", "; ", ": ", '"', "'",
    "../..", "\x00", "\x1b[31m", "\u2028", "\u202e", "\ufeff", "ü", "😈",
)  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(st.characters(exclude_categories=["Cs"]), max_size=4)),
                 max_size=5).map("".join)  # fmt: skip
LEFT = ("schema", "status", "sweep_id", "config_id", "attempt")


def hostile_store(results: Path, texts: Callable[[int], str]) -> list[Record]:
    """Write four records of the sweep s1, one of s2, and their raw files, with `texts(n)` as the n-th text.

    The structure of the records does not depend on the texts.
    """
    fields = [
        {"recovery": RECOVERED, "recoveries": [RECOVERED, CENSORED]},
        {"recovery": RECOVERED, "repetition": 1},
        {"recovery": CENSORED, "state_mb": 8.0},
        {"status": "invalid", "state_mb": 8.0, "repetition": 1},
        {"recovery": RECOVERED},
    ]
    timeline = {"gate": (0.0, "gate.json"), "measured_from": (20.0, "x"), "t0": (41.0, "x"), "t7": (55.0, "x")}
    made = []
    for number, named in enumerate(fields):
        another = 1000 * ("state_mb" in named)
        one = sample(attempt=f"a{number}", reasons=["x", "y: z"], timeline=timeline, **named)
        # The first record keeps its event names, so that it has figures.
        one = poisoned(one, texts, another, leave=("timeline",) if number == 0 else ())
        made.append(
            one.model_copy(update={"attempt": file_name(texts(900 + number)), "sweep_id": f"s{1 + number // 4}"})
        )
    put(results, *made)
    for one in made:
        _raw_files(results / "attempts" / one.attempt, texts)
    (results / "records" / made[0].config_id / f"{file_name(texts(990))}.json").write_text("{")
    return made


def poisoned(record: Record, texts: Callable[[int], str], another: int = 0, leave: tuple[str, ...] = ()) -> Record:
    """Return the record with other texts in all places and mapping keys that accept any text.

    `another`: offset that distinguishes the texts of different configurations.
    """
    content = record.as_dict()
    for number, way in enumerate(_ways_of(record.as_json(), leave)):
        _put(content, way, texts(number + another * (way[0] == "config")))
    return Record.model_validate({**content, "matrix": in_address(content["matrix"])})


@cache
def _ways_of(text: str, leave: tuple[str, ...]) -> tuple[Way, ...]:
    """Return the paths of a record that accept any text; paths that end in `*` are mappings with any key."""
    found = []
    for way in _places(json.loads(text)):
        content = json.loads(text)
        _put(content, way, "<hx>")
        try:
            Record.model_validate(content)
        except ValidationError:
            continue
        if way[0] not in (*LEFT, *leave):
            found.append(way)
    return tuple(found)


def _places(content: Any, way: Way = ()) -> Iterator[Way]:
    if isinstance(content, str):
        yield way
    elif isinstance(content, dict):
        for name, value in content.items():
            yield from _places(value, (*way, name))
        if way:
            yield (*way, "*")
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from _places(value, (*way, number))
    elif content is None:
        yield way


def _put(content: Any, way: Way, text: str) -> None:
    for step in way[:-1]:
        content = content[step]
    if way[-1] == "*":
        # Mappings of numbers do not accept texts.
        content[text] = 0.5 if all(isinstance(value, float) for value in content.values()) and content else text
    else:
        content[way[-1]] = text


def in_address(text: str) -> str:
    """Return the text for an address of the app, without line breaks."""
    return text.replace("\n", "")


def file_name(text: str) -> str:
    """Return the text as a file name that is valid in an address."""
    kept = in_address(text).replace("/", "⁄").replace("\0", "").encode()[:120].decode("utf-8", "ignore")
    return f"a{kept}"


def _raw_files(folder: Path, texts: Callable[[int], str]) -> None:
    folder.mkdir(parents=True)
    offenders = [{"kind": texts(1), "key": texts(2), "expected": texts(3), "final": 1}]
    (folder / "audit.json").write_text(json.dumps({"offenders": offenders}))
    prepared(folder, facts={"run_id": texts(4)}, parent_run_id=texts(5))
    points = [{"t_s": second, "p50_ms": 5.0, "p99_ms": 9.0, "max_ms": 12.0, "n": 3} for second in (1.0, 2.0)]
    events = [{"name": "t0", "t_s": 1.0, "source": texts(6)}, {"name": texts(7), "t_s": 1.0, "source": texts(8)}]
    series = {
        "latency": points, "throughput": [{"t_s": 2.0, "rps": 5.0}], "lag": [{"t_s": 2.0, "records": 3}],
        "cpu": [{"t_s": 1.0, "driver": 0.5}, {"t_s": 2.0, texts(9): 0.5}], "events": events, "warmup_s": 1,
        "duration_s": 2,
    }  # fmt: skip
    (folder / "series.json").write_text(json.dumps(series))
    lines: list[dict[str, Any]] = [
        {"event": "victims", "victims": [{"role": texts(10), "pid": texts(11), "host": texts(12)}]},
        {"event": "settled", "fault": 0, "outcome": texts(13), "detail": texts(14)},
        {"event": "undone", "fault": 0, "undo": texts(15), "error": texts(16)},
    ]
    for name, journal in (
        ("conductor", lines),
        ("services", [{"event": "started", "service": texts(17), "pid": texts(18)}]),
    ):
        stamped = [{**line, "wall_ns": 1, "mono_ns": 1} for line in journal]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in stamped))


class Skeleton(HTMLParser):
    """Markup of a page: tags with attribute names, comments and declarations in order; and all loaded addresses."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.parts: list[tuple[str, ...]] = []
        self.addresses: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parts.append((tag, *(name for name, _ in attrs)))
        named = dict(attrs)
        self.addresses += [str(named[name]) for name in ("href", "src", "action") if name in named]

    def handle_endtag(self, tag: str) -> None:
        self.parts.append((f"/{tag}",))

    def handle_comment(self, data: str) -> None:
        self.parts.append(("comment",))

    def handle_decl(self, decl: str) -> None:
        self.parts.append(("declaration", decl))

    def unknown_decl(self, data: str) -> None:
        self.parts.append(("unknown declaration",))

    def handle_pi(self, data: str) -> None:
        self.parts.append(("instruction",))
