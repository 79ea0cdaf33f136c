"""Former names of commands, options and variables."""

from __future__ import annotations

import os

import pytest
import typer

from faultline.cli import main as cli
from faultline.system.former_names import COMMANDS, OPTIONS, VARIABLES, adopt_renamed_variables, current_words


@pytest.mark.parametrize(
    ("former", "current"),
    [
        ("", ""),
        ("install --into dags", "airflow install --into dags"),
        ("conductor", "up --no-airflow --foreground"),
        ("record orders --to a.parquet", "export-topic orders --to a.parquet"),
        ("sweep recovery --again", "sweep recovery --rerun"),
        ("judge s1 --again", "judge s1 --write"),
        ("target add lab --own --kafka-of=other", "target add lab --own-connections --share-kafka=other"),
        ("service install --conductor", "service install --external-airflow"),
        ("run word_count --again", "run word_count --again"),
    ],
)
def test_former_names_become_the_current_ones(former: str, current: str) -> None:
    assert current_words(former.split()) == current.split()


def test_current_names_exist() -> None:
    for words in COMMANDS.values():
        assert _command(words[:2] if words[0] == "airflow" else words[:1])
    for words, options in OPTIONS.items():
        known = {name for one in _command(words).params for name in one.opts}
        assert known >= set(options.values()) and not known & set(options)


def test_a_former_variable_is_adopted_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        os, "environ", {"FAULTLINE_PASS": "TOKEN", "FAULTLINE_NIGHTS": "a", "FAULTLINE_NIGHTLY_DIR": "b"}
    )
    adopt_renamed_variables()
    assert (os.environ[VARIABLES["FAULTLINE_PASS"]], os.environ["FAULTLINE_NIGHTLY_DIR"]) == ("TOKEN", "b")
    assert capsys.readouterr().err.count("FAULTLINE_JOB_ENV") == 1
    adopt_renamed_variables()
    assert not capsys.readouterr().err


def _command(words: tuple[str, ...]) -> typer.core.TyperCommand:
    command = typer.main.get_command(cli.app)
    for word in words:
        command = command.commands[word]  # type: ignore[attr-defined]
    return command  # type: ignore[return-value]
