"""This installation's own Airflow: its configuration, services and Connections.

LocalExecutor, loopback, one user; SQLite, or the PostgreSQL whose address FAULTLINE_DATABASE gave to the last `up` that
had it. The configuration is a file, not environment variables: every component reads the same settings, and a detached
process inherits none of them.
"""

from __future__ import annotations

import configparser
import io
import json
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from faultline.engines.spark.settings import LOCAL_MASTER
from faultline.installation.supervisord import Service
from faultline.system.child_environment import workload_variables
from faultline.system.errors import ConfigError
from faultline.system.files import write_private
from faultline.system.kafka import kafka_client
from faultline.system.secrets import require_private
from faultline.system.settings import HOST, Settings
from faultline.system.socket_owner import fetch_json
from faultline.system.ssh_hosts import ssh_hosts

USER = "admin"
DATABASE = "FAULTLINE_DATABASE"
PASSWORD = "FAULTLINE_ADMIN_PASSWORD"
# How long a component waits for another one that writes to SQLite. On a busy machine the usual 5 s made requests fail.
SQLITE_TIMEOUT_S = 30
_DRIVER = "postgresql+psycopg2"
_CONNECT_S = 5
_BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"


def configuration(settings: Settings, keys: dict[str, str], database: str | None = None) -> dict[str, dict[str, str]]:
    """Sections and options of `airflow.cfg`; `keys` holds the secrets, `database` overrides SQLite."""
    home = settings.airflow_home
    return {
        "core": {
            "dags_folder": str(settings.root / "dags"),
            "plugins_folder": str(settings.root / "plugins"),
            "executor": "faultline.orchestration.executor.EventExecutor",
            "parallelism": "6",
            "load_examples": "False",
            # The safe mode skips files that do not hold both words; ours are two lines long.
            "dag_discovery_safe_mode": "False",
            "fernet_key": keys["fernet"],
            "internal_api_secret_key": keys["internal"],
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_passwords_file": str(password_file(settings)),
            "execution_api_server_url": f"{settings.endpoints.airflow}/execution/",
        },
        "database": {"sql_alchemy_conn": database or f"sqlite:///{home / 'airflow.db'}?timeout={SQLITE_TIMEOUT_S}"},
        "logging": {"base_log_folder": str(home / "logs")},
        "api": {
            "host": HOST,
            "port": str(settings.ports["airflow"]),
            "base_url": settings.endpoints.airflow,
            "secret_key": keys["api"],
            "expose_config": "False",
        },
        "api_auth": {"jwt_secret": keys["jwt"]},
        # Dead tasks are noticed in about a minute. Sooner, live ones were taken for dead on a full machine.
        "scheduler": {
            "task_instance_heartbeat_timeout": "60",
            "task_instance_heartbeat_timeout_detection_interval": "5",
            "orphaned_tasks_check_interval": "30",
            "scheduler_health_check_threshold": "60",
            "scheduler_heartbeat_sec": "2",
            # The executor does the waiting, and ends it when a task has ended.
            "scheduler_idle_sleep_time": "0.05",
            "catchup_by_default": "False",
        },
        # Each heartbeat of a task is a request to the API server.
        "workers": {"min_heartbeat_interval": "10"},
        "triggerer": {"runner_health_check_threshold": "120", "triggerer_health_check_threshold": "60"},
        "dag_processor": {
            "health_check_threshold": "60",
            "refresh_interval": "60",
            # Reading the DAG files takes a core for some seconds, beside whatever is measured. A changed file is read
            # at once all the same; what they import, when the services start.
            "min_file_process_interval": "600",
            "dag_bundle_config_list": json.dumps([{"name": "dags-folder", "classpath": _BUNDLE, "kwargs": {}}]),
        },
        "usage_data_collection": {"enabled": "False"},
    }


def write_airflow_home(settings: Settings, database: str | None = None) -> Path:
    """Writes `airflow.cfg` and the password file; secrets are made once and kept. Returns the home."""
    home = settings.airflow_home
    home.mkdir(parents=True, exist_ok=True)
    # The database and the logs in it are nobody else's business.
    home.chmod(0o700)
    secret_file = _key_file(settings)
    if not secret_file.exists():
        write_private(secret_file, json.dumps({**_new_keys(), "password": secrets.token_urlsafe(12)}))
    require_keys(settings)
    keys = json.loads(secret_file.read_text())
    if given := os.environ.get(PASSWORD):
        keys["password"] = given
    parser = configparser.RawConfigParser()
    parser.read_dict(configuration(settings, keys, database))
    target = home / "airflow.cfg"
    text = io.StringIO()
    parser.write(text)
    # Airflow interpolates its configuration, so a literal percent sign is written twice.
    write_private(target, text.getvalue().replace("%", "%%"))
    write_private(password_file(settings), json.dumps({USER: keys["password"]}))
    return home


def require_keys(settings: Settings) -> None:
    """Raises ConfigError when Airflow's keys, where they were made before, are not for this user only."""
    if _key_file(settings).exists():
        require_private(_key_file(settings))


def choose_database(settings: Settings, *, running: bool) -> str | None:
    """The database that is wanted now, and must answer unless Airflow is `running` on it; where nobody says, the one of
    before. None: SQLite.

    Raises ConfigError before anything is started.
    """
    present = configured_database(settings)
    wanted = present if os.environ.get(DATABASE) is None else requested_database()
    if running and wanted != present:
        raise ConfigError(f"{DATABASE}: Airflow runs on another database; ./faultline down first")
    if wanted and not running:
        require_database(wanted)
    return wanted


def requested_database() -> str | None:
    """The address that FAULTLINE_DATABASE gives, as SQLAlchemy wants it; None: SQLite in the state directory.

    Raises ConfigError when it is not that of a PostgreSQL database.
    """
    given = os.environ.get(DATABASE)
    if not given:
        return None
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    example = "give postgresql://USER:PASSWORD@HOST:PORT/NAME, or nothing for SQLite"
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise ConfigError(f"{DATABASE}: not an address; {example}") from None
    if url.drivername.split("+")[0] != "postgresql" or not url.database:
        raise ConfigError(f"{DATABASE}: {url.drivername}, database {url.database or 'none'}: refused; {example}")
    return url.set(drivername=_DRIVER).render_as_string(hide_password=False)


def require_database(address: str) -> None:
    """Raises ConfigError, without the password, when the database does not answer, or cannot hold every text."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    try:
        engine = create_engine(address, poolclass=NullPool, connect_args={"connect_timeout": _CONNECT_S})
        with engine.connect() as connection:
            encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
    except SQLAlchemyError as error:
        shown = make_url(address).render_as_string(hide_password=True)
        why = " ".join(str(getattr(error, "orig", None) or error).split())
        raise ConfigError(
            f"{DATABASE}: {shown} does not answer ({why}); start it, mend the address, or leave it empty for SQLite"
        ) from None
    if encoding != "UTF8":
        raise ConfigError(f"{DATABASE}: the database's encoding is {encoding}; make one with ENCODING 'UTF8'")


def configured_database(settings: Settings) -> str | None:
    """The address of the PostgreSQL that the written configuration names; None: SQLite, or nothing written yet."""
    parser = configparser.RawConfigParser()
    file = settings.airflow_home / "airflow.cfg"
    try:
        parser.read(file)
    except (configparser.Error, UnicodeDecodeError):
        raise ConfigError(f"{file}: is damaged, and names Airflow's database; delete it, and give {DATABASE}") from None
    address = parser.get("database", "sql_alchemy_conn", fallback="").replace("%%", "%")
    return address if address.startswith(_DRIVER) else None


def _key_file(settings: Settings) -> Path:
    return settings.airflow_home / "secrets.json"


def password_file(settings: Settings) -> Path:
    return settings.airflow_home / "passwords.json"


def password(settings: Settings) -> str:
    """The password of the one user, made by the first `up`. Raises ConfigError before that."""
    file = password_file(settings)
    require_private(file)
    return str(json.loads(file.read_text())[USER])


def login_text(settings: Settings, out: TextIO) -> str:
    """Who logs in, and with what; the password only where `out` is a terminal, and not where it would be kept."""
    how = f"password {password(settings)}" if out.isatty() else "./faultline password shows the password"
    return f"user {USER}, {how}"


def airflow_environment(settings: Settings) -> dict[str, str]:
    """What a process needs in its environment to be a part of this Airflow."""
    return {
        "AIRFLOW_HOME": str(settings.airflow_home),
        "AIRFLOW_CONFIG": str(settings.airflow_home / "airflow.cfg"),
        **installation_environment(settings),
    }


def installation_environment(settings: Settings) -> dict[str, str]:
    """What makes another process, whatever its working directory, use this installation's folders."""
    return {"FAULTLINE_HOME": str(settings.home), "FAULTLINE_RESULTS": str(settings.results)}


def _new_keys() -> dict[str, str]:
    import base64

    return {
        "fernet": base64.urlsafe_b64encode(os.urandom(32)).decode(),
        "internal": secrets.token_urlsafe(32),
        "api": secrets.token_urlsafe(32),
        "jwt": secrets.token_urlsafe(48),
    }


# ---- Airflow's API server, scheduler, DAG processor and triggerer ----


def airflow_services(settings: Settings) -> list[Service]:
    """Airflow's four components, from this environment's own `airflow` command."""
    airflow = str(Path(sys.executable).with_name("airflow"))

    def component(name: str) -> Callable[[], bool]:
        return lambda: airflow_health(settings).get(name) == "healthy"

    scheduler = ["scheduler", "--skip-serve-logs"]
    api_command = ["api-server", "--host", HOST, "--port", str(settings.ports["airflow"]), "--workers", "1"]
    return [
        Service(
            "airflow-api-server", [airflow, *api_command], lambda: bool(airflow_health(settings)), stop_signal="INT",
            background=True,
        ),
        # The tasks' logs are read from disk, so the log servers, which bind to every address, stay off.
        Service(
            "airflow-scheduler",
            [sys.executable, "-P", "-m", "faultline.installation.start", "scheduler", airflow, *scheduler],
            component("scheduler"), environment=workload_variables(), background=True,
        ),
        Service("airflow-dag-processor", [airflow, "dag-processor"], component("dag_processor"), background=True),
        Service(
            "airflow-triggerer", [airflow, "triggerer", "--skip-serve-logs"], component("triggerer"), background=True
        ),
    ]  # fmt: skip


def airflow_health(settings: Settings) -> dict[str, str]:
    """Status by component as the API server reports it; empty when it does not answer."""
    answer = fetch_json(f"{settings.endpoints.airflow}/api/v2/monitor/health") or {}
    return {
        name: str(part.get("status"))
        for name, part in answer.items()
        if isinstance(part, dict) and part.get("status") is not None
    }


# ---- The Airflow Connections of an installation: its broker, its Spark, and the hosts that SSH reaches ----


def connections(settings: Settings) -> dict[str, dict[str, object]]:
    """The Airflow Connections by id, as keyword arguments of Airflow's `Connection`."""
    return {
        "kafka_default": {
            "conn_type": "kafka",
            "extra": json.dumps(kafka_client(settings.endpoints.kafka, secrets=settings.secrets)),
        },
        **spark_connections(settings),
        **{f"ssh_{name}": _ssh_connection(host) for name, host in ssh_hosts(settings).items()},
    }


def _ssh_connection(host: dict[str, Any]) -> dict[str, object]:
    """Only paths of keys are kept, never a key or a password."""
    extra = {key: host[key] for key in ("key_file", "known_hosts", "python", "disk") if key in host}
    known = {"host": host["host"], "login": host["user"], "port": int(host["port"])}
    return {"conn_type": "ssh", **known, "extra": json.dumps(extra)}


def spark_connections(settings: Settings) -> dict[str, dict[str, object]]:
    """The Connections by id: the cluster's master, and one JVM for short jobs."""
    common = {"conn_type": "spark", "extra": json.dumps({"deploy-mode": "client", "spark-binary": "spark-submit"})}
    master = {"host": f"spark://{settings.placement.conductor}", "port": settings.ports["spark_master"]}
    return {"spark_default": {**common, **master}, "spark_local": {**common, "host": LOCAL_MASTER}}
