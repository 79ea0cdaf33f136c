"""`./faultline job check` and `job new`: check and create user jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from faultline.system.errors import ConfigError
from faultline.system.text import progress

app = typer.Typer(name="job", help="Check and create user jobs.", no_args_is_help=True)


@app.command(context_settings={"ignore_unknown_options": False})
def check(
    file: Annotated[
        str, typer.Argument(help="Python file with a function `query`, SQL file, or program (Python or jar).")
    ],
    parameters: Annotated[
        list[str] | None, typer.Argument(help="Parameters as for `run`, such as rate=100 or arguments.window_s=5.")
    ] = None,
) -> None:
    """Run a user job for 20 s. Report which figures can be measured, and why others cannot.

    Exit code 0: the run is usable; 1: it is not; 2: the job cannot run.
    """
    from faultline.cli.job_check import check_job

    outcome = check_job(file, parameters or [], progress)
    print("\n".join(outcome.lines))
    raise typer.Exit(0 if outcome.is_usable else 1)


@app.command()
def new(
    name: Annotated[
        str, typer.Argument(help="Name of the job; creates NAME.py, or NAME if it ends in .sql, in the current folder.")
    ],
) -> None:
    """Create a template job, runnable with all declarations: a word count, or in SQL a count and sum per key."""
    from faultline.cli.job_check import SQL_TEMPLATE, TEMPLATE
    from faultline.experiment.job_file import is_sql

    template = SQL_TEMPLATE if is_sql(name) else TEMPLATE
    path = Path(name if name.endswith((".py", template.suffix)) else f"{name}.py")
    if not path.stem.isidentifier():
        raise ConfigError(f"NAME: got {name!r}; expected the name of a Python module (letters, digits and _)")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template.read_text(encoding="utf-8").replace(f"examples/{template.name}", str(path)))
    except FileExistsError:
        raise ConfigError(f"{path}: exists; fix: choose another name") from None
    except OSError as error:
        raise ConfigError(f"{path}: write failed: {error.strerror}") from None
    progress(f"created {path}; check it with ./faultline job check {path}")
