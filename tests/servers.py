"""Servers that tests start on free ports of the loopback interface."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import socket
import ssl
import subprocess
from contextlib import closing, contextmanager, suppress
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, NamedTuple, Self

import psycopg

from tests.eventually import eventually
from tests.external_tools import MOSQUITTO, POSTGRESQL, require
from tests.program_logs import register_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TIMEOUT_SECONDS = 30.0
"""Seconds until a server must listen; only reached when it is broken."""


NO_TRUSTED_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""TLS context for clients without TLS: loading the CA certificates of the system would take 50 ms each."""


class ServerAddress(NamedTuple):
    """Address of a listening server."""

    host: str
    port: int


_SHARED_VARIABLE = "MESHFLEET_TESTS_SHARED"
"""Environment variable with the path of the shared directory, for the workers."""

_IN_MEMORY = Path("/dev/shm")  # noqa: S108 # the names in it are random
_MIN_FREE_BYTES = 2 * 1024**3
"""Bytes that must be free; a server takes less than a tenth."""

_PORTS = range(10_000, 32_700)
"""Ports below the ephemeral range: the system could assign others to connections before a server listens
again."""
_PORTS_PER_PROCESS = 100
"""Ports that are reserved for each test process."""


def free_port() -> int:
    """Return a port that no program listens on, reserved for this process."""
    for port in islice(_reserve_ports(), _PORTS_PER_PROCESS):
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("all ports of this process are in use")


@cache
def _reserve_ports() -> Iterator[int]:
    """Cycle through a block of ports, reserved by an abstract socket name that ends with this process."""
    blocks = len(_PORTS) // _PORTS_PER_PROCESS
    reservation = socket.socket(socket.AF_UNIX)
    for number in range(blocks):
        first = _PORTS[(os.getpid() + number) % blocks * _PORTS_PER_PROCESS]
        with suppress(OSError):
            reservation.bind(f"\0meshfleet-tests-{first}")
            atexit.register(reservation.close)
            return cycle(range(first, first + _PORTS_PER_PROCESS))
    raise RuntimeError("all blocks of ports are in use")


class Mosquitto:
    """Mosquitto broker that can be stopped, killed and restarted with the same port and directory.

    Each of `settings` is a line of its configuration; without one about access it accepts every client.
    """

    def __init__(self, directory: Path, *settings: str) -> None:
        self.address = ServerAddress("127.0.0.1", free_port())
        self._log = register_log("mosquitto", directory / "mosquitto.log")
        config = directory / "mosquitto.conf"
        lines = [f"listener {self.address.port} {self.address.host}", *settings]
        if not any(line.startswith(("allow_anonymous", "password_file")) for line in settings):
            lines.append("allow_anonymous true")
        if os.geteuid() == 0:
            lines.append("user root")  # else it switches to a user who may not read the directory
        config.write_text("\n".join([*lines, f"persistence_location {directory}/", ""]))
        self._command = [str(require(MOSQUITTO)), "-c", str(config)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker, and wait until it serves clients."""
        self._process = start_program(self._command, self._log)
        wait_until_listening(self._process, self.address, self._log)
        _wait_until_served(self.address)

    def reload(self) -> None:
        """Reload the configuration files."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def stop(self, signal_number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the broker with a signal, and wait until its process has ended."""
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(_TIMEOUT_SECONDS)
            self._process = None


class PostgreSQL:
    """PostgreSQL server with a new cluster, which can be stopped, killed and restarted with the same port.

    The user is `postgres`, without a password. Each of `settings` is a line of its configuration, such as
    `shared_buffers=1GB`.
    """

    def __init__(self, directory: Path, *settings: str) -> None:
        self.address = ServerAddress("127.0.0.1", free_port())
        self.url = f"postgresql://postgres@{self.address.host}:{self.address.port}"
        program = require(POSTGRESQL).resolve()  # its other programs are in the same directory
        as_owner: list[str] = []
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root. The Debian package has created the user postgres, which needs
            # access.
            as_owner = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
            shutil.chown(directory, "postgres", "postgres")
        data = ["-D", str(directory / "data")]
        # Creating a cluster takes a second of CPU time; copying one takes a twentieth of that.
        copy = ["cp", "-a", _create_cluster_template(program, tuple(as_owner)), str(directory / "data")]
        subprocess.run([*as_owner, *copy], check=True, capture_output=True, cwd=directory)
        options = ["-h", self.address.host, "-p", str(self.address.port), "-k", str(directory), "-F"]
        options += [part for setting in settings for part in ("-c", setting)]
        self._command = [*as_owner, str(program), *data, *options]
        self._log = register_log("PostgreSQL", directory / "postgresql.log")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGINT)

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        self._process = start_program(self._command, self._log)
        wait_until_listening(self._process, self.address, self._log)
        _wait_until_ready(f"{self.url}/postgres")

    def stop(self, signal_number: signal.Signals = signal.SIGINT) -> None:
        """Stop the server with a signal, and wait until it has ended.

        SIGINT disconnects its clients first.
        """
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(_TIMEOUT_SECONDS)
            self._process = None

    def kill(self) -> None:
        """Kill all processes of the server at once with SIGKILL."""
        assert self._process is not None
        children = _list_children(self._process.pid)
        self.stop(signal.SIGKILL)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        # The next server does not start before all processes have ended.
        eventually(lambda: not any(map(_is_running, children)), "the end of all PostgreSQL processes")

    def kill_backend(self, application: str) -> None:
        """Kill the process that last served a client with this application name. The server then restarts."""
        query = (
            "SELECT pid FROM pg_stat_activity WHERE application_name = %s ORDER BY state_change DESC LIMIT 1"
        )
        with psycopg.connect(f"{self.url}/postgres") as connection:
            row = connection.execute(query, [application]).fetchone()
        assert row is not None
        os.kill(row[0], signal.SIGKILL)


@cache
def _create_cluster_template(program: Path, as_owner: tuple[str, ...]) -> str:
    """Create a cluster that is never started; the clusters of tests are copies. All workers share one."""
    directory = shared_directory() / "cluster"
    with (shared_directory() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            incomplete = Path(mkdtemp(dir=shared_directory()))  # renamed when it is complete
            if as_owner:
                shutil.chown(incomplete, "postgres", "postgres")
            options = ["-D", f"{incomplete}/data", "-U", "postgres", "-A", "trust", "--no-sync"]
            command = [*as_owner, str(program.with_name("initdb")), *options]
            subprocess.run(command, check=True, capture_output=True, cwd=incomplete)
            incomplete.rename(directory)
    return f"{directory}/data"


@cache
def shared_directory() -> Path:
    """Return the directory that all workers share. The main process creates it and ends last."""
    if _SHARED_VARIABLE not in os.environ:
        directory = mkdtemp(prefix="meshfleet-shared-")
        os.environ[_SHARED_VARIABLE] = directory
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        Path(directory).chmod(0o711)  # the owner of a cluster must be able to enter it
    return Path(os.environ[_SHARED_VARIABLE])


def _list_children(parent: int) -> list[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text("utf-8")
    return [int(number) for number in text.split()]


def _is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@contextmanager
def postgresql(*settings: str) -> Iterator[ServerAddress]:
    """Run a PostgreSQL server with a new cluster while a block lasts; see `PostgreSQL`."""
    with postgresql_directory() as directory, PostgreSQL(directory, *settings) as server:
        yield server.address


@contextmanager
def postgresql_directory() -> Iterator[Path]:
    """Create a directory for a cluster while a block lasts.

    It is in memory if there is space: each test creates and drops a database of hundreds of files, and on a
    disk that takes three times as long.
    """
    with TemporaryDirectory(prefix="meshfleet-postgresql-", dir=_find_memory_directory()) as name:
        yield Path(name)


def _find_memory_directory() -> Path | None:
    try:
        filesystem = os.statvfs(_IN_MEMORY)
    except OSError:
        return None
    has_space = filesystem.f_bavail * filesystem.f_frsize > _MIN_FREE_BYTES
    return _IN_MEMORY if has_space and os.access(_IN_MEMORY, os.W_OK) else None


def _wait_until_served(address: ServerAddress) -> None:
    """Wait until mosquitto closes a connection that we shut down: before that it ignores SIGTERM."""
    with socket.create_connection(address, _TIMEOUT_SECONDS) as probe, suppress(ConnectionResetError):
        probe.shutdown(socket.SHUT_WR)
        while probe.recv(1024):  # a TLS listener sends an alert first
            pass


def _wait_until_ready(server: str) -> None:
    """Wait until PostgreSQL accepts connections: it listens before it has started up."""

    def accepts_connections() -> bool:
        try:
            psycopg.connect(server).close()
        except psycopg.OperationalError as exc:
            raise AssertionError("connection refused") from exc
        return True

    eventually(accepts_connections, "the start of PostgreSQL", patience=_TIMEOUT_SECONDS)


def start_program(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program in the directory of its log."""
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)


def wait_until_listening(process: subprocess.Popen[bytes], address: ServerAddress, log: Path) -> None:
    """Wait until a program accepts connections. Raise `RuntimeError` with its log if it has ended."""

    def is_listening() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} has ended: {log.read_text(errors='replace')[-1000:]}")
        with closing(socket.socket()) as probe:
            return probe.connect_ex(address) == 0

    eventually(is_listening, f"a listener of {process.args!r}", patience=_TIMEOUT_SECONDS)
