"""A bundle of what was measured, made of the results folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.records.bundle import SUFFIX, Member, sha256, write_bundle
from faultline.records.judge.file_reduction import reduced
from faultline.records.judge.rejudge import SUPERSEDED
from faultline.records.record import Record
from faultline.records.sweep_plan import SweepPlans
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings, load_settings
from faultline.system.text import Progress


def bundle_records(records: Sequence[Record], path: Path, say: Progress, *, saved: Sequence[Path] = ()) -> None:
    """Writes the bundle of these records: with the plans of their sweeps, records that others took the place of, and
    the raw files of their attempts. Paths of this machine are replaced in texts.

    Raises ConfigError for records that were read from a file, and for a path that is no bundle's.
    """
    if saved:
        raise ConfigError("--bundle: is made of the store, where raw files are; leave out --from")
    if not path.name.endswith(SUFFIX):
        raise ConfigError(f"--bundle {path}: is no name of a bundle; let it end in {SUFFIX}")
    if not records:
        raise ConfigError("--bundle: no record matches, so there is nothing to put in")
    settings = load_settings()
    gone = {one.attempt for one in records if not (settings.attempts / one.attempt / "attempt.json").is_file()}
    write_bundle(path, _members(records, settings, gone))
    say(f"bundle: {path}, {path.stat().st_size:,} bytes, {len(records) - len(gone)} attempts")
    if gone:
        say(f"bundle: no raw files any more, so only the record, of {', '.join(sorted(gone))}")


def _members(records: Sequence[Record], settings: Settings, gone: set[str]) -> Iterator[Member]:
    for record in records:
        folder = settings.attempts / record.attempt
        measured = None if record.attempt in gone else Attempt(folder)
        hidden = _places(settings, measured)
        yield Member(f"records/{record.config_id}/{record.attempt}.json", _hide(record.as_json().encode(), hidden))
        for old in sorted((settings.results / SUPERSEDED / record.config_id).glob(f"{record.attempt}.*.json")):
            yield Member(f"{SUPERSEDED}/{record.config_id}/{old.name}", _hide(old.read_bytes(), hidden))
        for file in reduced(folder) if measured else ():
            content = _hide(file.content, hidden) if not file.path.endswith(".parquet") else file.content
            how = file.how
            if content != file.content:
                how = f"{how}; paths replaced" if how else "paths replaced"
            original = None if sha256(content) == file.original else file.original
            yield Member(f"attempts/{record.attempt}/{file.path}", content, original, how)
    hidden = _places(settings, None)
    for sweep in sorted({record.sweep_id for record in records if record.sweep_id}):
        plan = SweepPlans(settings.results).directory / f"{sweep}.json"
        if plan.is_file():
            yield Member(f"sweeps/{sweep}.json", _hide(plan.read_bytes(), hidden))


def _places(settings: Settings, measured: Attempt | None) -> dict[bytes, bytes]:
    """Paths of this machine, the longest first, and what stands for them. `measured`: an attempt, which another
    checkout may have measured."""
    stands = {
        settings.results: "/faultline/results",
        settings.home: "/faultline/.faultline",
        settings.root: "/faultline",
        Path.home(): "/home/user",
    }
    if measured is not None and "home" in (said := measured.read()):
        stands[Path(said["home"])] = "/faultline/.faultline"
    if measured is not None and (named := read_plan(measured).engine.programs):
        programs = Path(named)
        stands |= {programs: f"/faultline/{programs.name}", programs.parent: "/faultline"}
    ordered = sorted(stands.items(), key=lambda one: -len(str(one[0])))
    # Also as JSON writes letters that are not of ASCII.
    return {
        text.encode(): name.encode()
        for path, name in ordered
        if len(path.parts) > 1
        for text in (str(path), json.dumps(str(path))[1:-1])
    }


def _hide(content: bytes, hidden: Mapping[bytes, bytes]) -> bytes:
    if not hidden:
        return content
    pattern = re.compile(rb"(?<![\w.-])(?:" + b"|".join(map(re.escape, hidden)) + rb")(?![\w.-])")
    return pattern.sub(lambda found: hidden[found.group()], content)
