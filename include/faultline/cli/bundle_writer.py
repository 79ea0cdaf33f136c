"""Bundles: records with their sweep plans and raw files, written from the results folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.records.bundle import SUFFIX, Member, sha256, write_bundle
from faultline.records.judge.file_reduction import reduce_files
from faultline.records.judge.rejudge import SUPERSEDED
from faultline.records.record import Record
from faultline.records.sweep_plan import SweepPlans
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings, load_settings
from faultline.system.text import Progress


def bundle_records(records: Sequence[Record], path: Path, progress: Progress, *, saved: Sequence[Path] = ()) -> None:
    """Write a bundle of records with their sweep plans, superseded records and raw files.

    Paths of this machine are replaced in texts. Raises ConfigError if the records come from a file, or if `path` does
    not end like a bundle.
    """
    if saved:
        raise ConfigError("--bundle: got --from too; expected records of the store, which has the raw files")
    if not path.name.endswith(SUFFIX):
        raise ConfigError(f"--bundle: got {path}; expected a name that ends in {SUFFIX}")
    if not records:
        raise ConfigError("--bundle: no record matches")
    settings = load_settings()
    without_files = {one.attempt for one in records if not (settings.attempts / one.attempt / "attempt.json").is_file()}
    write_bundle(path, _members(records, settings, without_files))
    progress(f"bundle: {path}, {path.stat().st_size:,} bytes, {len(records) - len(without_files)} attempts")
    if without_files:
        progress(f"bundle: raw files deleted, record only: {', '.join(sorted(without_files))}")


def _members(records: Sequence[Record], settings: Settings, without_files: set[str]) -> Iterator[Member]:
    for record in records:
        folder = settings.attempts / record.attempt
        measured = None if record.attempt in without_files else Attempt(folder)
        hidden = _path_replacements(settings, measured)
        yield Member(
            f"records/{record.config_id}/{record.attempt}.json", _replace_paths(record.as_json().encode(), hidden)
        )
        for old in sorted((settings.results / SUPERSEDED / record.config_id).glob(f"{record.attempt}.*.json")):
            yield Member(f"{SUPERSEDED}/{record.config_id}/{old.name}", _replace_paths(old.read_bytes(), hidden))
        for file in reduce_files(folder) if measured else ():
            content = _replace_paths(file.content, hidden) if not file.path.endswith(".parquet") else file.content
            how = file.how
            if content != file.content:
                how = f"{how}; paths replaced" if how else "paths replaced"
            original = None if sha256(content) == file.original else file.original
            yield Member(f"attempts/{record.attempt}/{file.path}", content, original, how)
    hidden = _path_replacements(settings, None)
    for sweep in sorted({record.sweep_id for record in records if record.sweep_id}):
        plan = SweepPlans(settings.results).directory / f"{sweep}.json"
        if plan.is_file():
            yield Member(f"sweeps/{sweep}.json", _replace_paths(plan.read_bytes(), hidden))


def _path_replacements(settings: Settings, measured: Attempt | None) -> dict[bytes, bytes]:
    """Return the replacement of each path of this machine, longest path first.

    The attempt `measured` adds the paths of the checkout that measured it.
    """
    replacements = {
        settings.results: "/faultline/results",
        settings.home: "/faultline/.faultline",
        settings.root: "/faultline",
        Path.home(): "/home/user",
    }
    if measured is not None and "home" in (values := measured.read()):
        replacements[Path(values["home"])] = "/faultline/.faultline"
    if measured is not None and (named := read_plan(measured).engine.programs):
        programs = Path(named)
        replacements |= {programs: f"/faultline/{programs.name}", programs.parent: "/faultline"}
    ordered = sorted(replacements.items(), key=lambda one: -len(str(one[0])))
    # Each path is replaced in two forms, because JSON escapes letters outside ASCII.
    return {
        text.encode(): name.encode()
        for path, name in ordered
        if len(path.parts) > 1
        for text in (str(path), json.dumps(str(path))[1:-1])
    }


def _replace_paths(content: bytes, hidden: Mapping[bytes, bytes]) -> bytes:
    if not hidden:
        return content
    pattern = re.compile(rb"(?<![\w.-])(?:" + b"|".join(map(re.escape, hidden)) + rb")(?![\w.-])")
    return pattern.sub(lambda found: hidden[found.group()], content)
