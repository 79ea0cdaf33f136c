"""This installation's own Airflow: its configuration, services and Connections.

LocalExecutor, loopback, one user; SQLite, or the PostgreSQL database of FAULTLINE_DATABASE at the last `up` that set
it. The configuration is a file, so that every component reads the same settings and detached processes inherit none.
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
# Wait for another writer of SQLite. On a busy machine the default of 5 s made requests fail.
SQLITE_TIMEOUT_S = 30
_DRIVER = "postgresql+psycopg2"
_CONNECT_S = 5
_BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"


def configuration(settings: Settings, keys: dict[str, str], database: str | None = None) -> dict[str, dict[str, str]]:
    """Return sections and options of `airflow.cfg`; `keys`: the secrets; `database` overrides SQLite."""
    home = settings.airflow_home
    return {
        "core": {
            "dags_folder": str(settings.root / "dags"),
            "plugins_folder": str(settings.root / "plugins"),
            "executor": "faultline.orchestration.executor.EventExecutor",
            "parallelism": "6",
            "load_examples": "False",
            # Safe mode skips files without certain words; these files have two lines.
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
        # Dead tasks are detected in about a minute. Shorter timeouts hit live tasks on a busy machine.
        "scheduler": {
            "task_instance_heartbeat_timeout": "60",
            "task_instance_heartbeat_timeout_detection_interval": "5",
            "orphaned_tasks_check_interval": "30",
            "scheduler_health_check_threshold": "60",
            "scheduler_heartbeat_sec": "2",
            # The executor waits, and returns when a task ends.
            "scheduler_idle_sleep_time": "0.05",
            "catchup_by_default": "False",
        },
        # Each heartbeat of a task is a request to the API server.
        "workers": {"min_heartbeat_interval": "10"},
        "triggerer": {"runner_health_check_threshold": "120", "triggerer_health_check_threshold": "60"},
        "dag_processor": {
            "health_check_threshold": "60",
            "refresh_interval": "60",
            # Parsing the DAG files uses a core for some seconds, even during a measurement, so it is rare. A changed
            # file is parsed at once nevertheless; its imports are reloaded when the services start.
            "min_file_process_interval": "600",
            "dag_bundle_config_list": json.dumps([{"name": "dags-folder", "classpath": _BUNDLE, "kwargs": {}}]),
        },
        "usage_data_collection": {"enabled": "False"},
    }


def write_airflow_home(settings: Settings, database: str | None = None) -> Path:
    """Write `airflow.cfg` and the password file, and return the folder. Secrets are created once."""
    home = settings.airflow_home
    home.mkdir(parents=True, exist_ok=True)
    # The folder contains the database and logs.
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
    """Raise ConfigError if other users can access Airflow's existing keys."""
    if _key_file(settings).exists():
        require_private(_key_file(settings))


def choose_database(settings: Settings, *, running: bool) -> str | None:
    """Return the database address of FAULTLINE_DATABASE, else the configured one; None: SQLite.

    The database must answer, unless Airflow already runs on it (`running`). Raises ConfigError before a service starts.
    """
    present = configured_database(settings)
    wanted = present if os.environ.get(DATABASE) is None else requested_database()
    if running and wanted != present:
        raise ConfigError(f"{DATABASE}: Airflow runs on another database; fix: `./faultline down` first")
    if wanted and not running:
        require_database(wanted)
    return wanted


def requested_database() -> str | None:
    """Return the address in FAULTLINE_DATABASE in SQLAlchemy's form; None: SQLite in the state directory.

    Raises ConfigError if it is not a PostgreSQL address.
    """
    given = os.environ.get(DATABASE)
    if not given:
        return None
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    example = "expected postgresql://USER:PASSWORD@HOST:PORT/NAME, or empty for SQLite"
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise ConfigError(f"{DATABASE}: got an invalid address; {example}") from None
    if url.drivername.split("+")[0] != "postgresql" or not url.database:
        raise ConfigError(f"{DATABASE}: got {url.drivername}, database {url.database or 'none'}; {example}")
    return url.set(drivername=_DRIVER).render_as_string(hide_password=False)


def require_database(address: str) -> None:
    """Raise ConfigError, without the password, if the database does not answer or is not UTF-8."""
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
            f"{DATABASE}: connecting to {shown} failed: {why}; fix: start it, or correct the address (empty: SQLite)"
        ) from None
    if encoding != "UTF8":
        raise ConfigError(f"{DATABASE}: got encoding {encoding}; expected UTF8; fix: create it with ENCODING 'UTF8'")


def configured_database(settings: Settings) -> str | None:
    """Return the PostgreSQL address in the written configuration; None for SQLite or no file."""
    parser = configparser.RawConfigParser()
    file = settings.airflow_home / "airflow.cfg"
    try:
        parser.read(file)
    except (configparser.Error, UnicodeDecodeError):
        raise ConfigError(f"{file}: damaged; it names Airflow's database; fix: delete it, and set {DATABASE}") from None
    address = parser.get("database", "sql_alchemy_conn", fallback="").replace("%%", "%")
    return address if address.startswith(_DRIVER) else None


def _key_file(settings: Settings) -> Path:
    return settings.airflow_home / "secrets.json"


def password_file(settings: Settings) -> Path:
    return settings.airflow_home / "passwords.json"


def password(settings: Settings) -> str:
    """Return the password of the only user. Raises ConfigError before the first `up`."""
    file = password_file(settings)
    require_private(file)
    return str(json.loads(file.read_text())[USER])


def login_text(settings: Settings, out: TextIO) -> str:
    """Return user and password; without a terminal, the command that shows the password."""
    how = f"password {password(settings)}" if out.isatty() else "./faultline password shows the password"
    return f"user {USER}, {how}"


def airflow_environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables of this Airflow's processes."""
    return {
        "AIRFLOW_HOME": str(settings.airflow_home),
        "AIRFLOW_CONFIG": str(settings.airflow_home / "airflow.cfg"),
        **installation_environment(settings),
    }


def installation_environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables that select this installation's folders."""
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
    """Return Airflow's four components, started by this environment's `airflow` command."""
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
    """Return the status by component from the API server; empty if it does not answer."""
    answer = fetch_json(f"{settings.endpoints.airflow}/api/v2/monitor/health") or {}
    return {
        name: str(part.get("status"))
        for name, part in answer.items()
        if isinstance(part, dict) and part.get("status") is not None
    }


# ---- The Airflow Connections of an installation: broker, Spark and SSH hosts ----


def connections(settings: Settings) -> dict[str, dict[str, object]]:
    """Return the Airflow Connections by id, as keyword arguments of Airflow's `Connection`."""
    return {
        "kafka_default": {
            "conn_type": "kafka",
            "extra": json.dumps(kafka_client(settings.endpoints.kafka, secrets=settings.secrets)),
        },
        **spark_connections(settings),
        **{f"ssh_{name}": _ssh_connection(host) for name, host in ssh_hosts(settings).items()},
    }


def _ssh_connection(host: dict[str, Any]) -> dict[str, object]:
    """Return a host's Connection, with paths of keys but no key or password."""
    extra = {key: host[key] for key in ("key_file", "known_hosts", "python", "disk") if key in host}
    known = {"host": host["host"], "login": host["user"], "port": int(host["port"])}
    return {"conn_type": "ssh", **known, "extra": json.dumps(extra)}


def spark_connections(settings: Settings) -> dict[str, dict[str, object]]:
    """Return the Spark Connections by id: the cluster's master, and one JVM for short jobs."""
    common = {"conn_type": "spark", "extra": json.dumps({"deploy-mode": "client", "spark-binary": "spark-submit"})}
    master = {"host": f"spark://{settings.placement.conductor}", "port": settings.ports["spark_master"]}
    return {"spark_default": {**common, **master}, "spark_local": {**common, "host": LOCAL_MASTER}}
