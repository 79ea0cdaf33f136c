"""What a topology stands on beside Kafka: the store of its stage `persist`, and a Memcached for its delayed queue."""

from __future__ import annotations

import getpass
import os
import shutil

from faultline.experiment.preparations import Companion
from faultline.experiment.workloads.topology_rules import TopologyParameters, mechanisms_of, parallelism, rules_of
from faultline.system.errors import ConfigError

# Where the stage `persist` writes with `store=postgresql`, and a Memcached that runs already.
DATABASE = "FAULTLINE_TOPOLOGY_DATABASE"
MEMCACHED = "FAULTLINE_MEMCACHED"


def check_services(own: TopologyParameters) -> None:
    """Refuses, before anything is started, a store or a queue that does not answer."""
    if "persist" not in parallelism(own.parallelism):
        return
    if rules_of(own).store == "postgresql":
        _check_database()
    if queues_in_memcached(own):
        address = memcached_address()
        if address is not None:
            _check_memcached(*address)
        elif memcached_program() is None:
            raise ConfigError(
                "topology.queue: memcached is not installed; install the Debian package memcached, give "
                f"{MEMCACHED}=HOST:PORT, or use memory"
            )


def queues_in_memcached(own: TopologyParameters) -> bool:
    """Whether the delayed queue lies in a Memcached."""
    return "delayed_persistence" in mechanisms_of(own) and rules_of(own).queue == "memcached"


def own_memcached(own: TopologyParameters) -> tuple[Companion, ...]:
    """A Memcached of the attempt's own, where none runs already that it is to use."""
    if not queues_in_memcached(own) or memcached_address() is not None:
        return ()
    # -u counts only for root, who is refused without it.
    limits = ("-U", "0", "-m", "256", "-u", getpass.getuser())
    return (Companion("memcached", (memcached_program() or "memcached", "-l", "{host}", "-p", "{port}", *limits)),)


def memcached_program() -> str | None:
    """The command, which lies where an ordinary user's PATH may not reach."""
    return shutil.which("memcached", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/bin", "/usr/local/bin"]))


def memcached_address() -> tuple[str, int] | None:
    """Where a Memcached runs already; None: the experiment starts one. Raises ConfigError for no address."""
    given = os.environ.get(MEMCACHED)
    if not given:
        return None
    host, _, port = given.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"{MEMCACHED}: {given!r} is no address; give HOST:PORT, or leave it out")
    return host, int(port)


def _check_memcached(host: str, port: int) -> None:
    from pymemcache.client.base import Client
    from pymemcache.exceptions import MemcacheError

    try:
        client = Client((host, port), connect_timeout=5, timeout=5)
        client.version()
        client.close()
    except (OSError, MemcacheError) as error:
        raise ConfigError(f"{MEMCACHED}: {host}:{port} does not answer ({error}); start it, or leave it out") from None


def _check_database() -> None:
    import psycopg2

    address = os.environ.get(DATABASE)
    if not address:
        raise ConfigError(
            f"topology.store: postgresql needs {DATABASE}=postgresql://USER:PASSWORD@HOST:PORT/NAME; or use sqlite"
        )
    try:
        psycopg2.connect(address, connect_timeout=5).close()
    except psycopg2.Error as error:
        why = str(error).strip().splitlines()[0]
        raise ConfigError(f"{DATABASE}: the database does not answer ({why}); start it, or mend the address") from None
