"""Servers that tests start on free ports of the loopback interface, and stop by their process."""

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
"""Seconds until a server must listen; reached only when it is broken."""


NO_TRUSTED_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that come without TLS: to read all authorities of the world takes each of them 50 ms."""


class ServerAddress(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


_SHARED_VARIABLE = "MESHFLEET_TESTS_SHARED"
"""The variable that tells workers where the shared folder is."""

_IN_MEMORY = Path("/dev/shm")  # noqa: S108 # nobody can guess the names in it
_MIN_FREE_BYTES = 2 * 1024**3
"""Bytes; a server takes less than a tenth."""

_PORTS = range(10_000, 32_700)
"""The system gives higher ones to connections: they may take one before its server listens, or is back."""
_PORTS_PER_PROCESS = 100
"""Ports that each process of tests has for itself."""


def free_port() -> int:
    """Return a port that no program listens on, and that stays ours."""
    for port in islice(_ports(), _PORTS_PER_PROCESS):
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("all ports of this process are taken")


@cache
def _ports() -> Iterator[int]:
    """Go round a block of ports. The name of a socket, which ends with this process, reserves it."""
    blocks = len(_PORTS) // _PORTS_PER_PROCESS
    reservation = socket.socket(socket.AF_UNIX)
    for number in range(blocks):
        first = _PORTS[(os.getpid() + number) % blocks * _PORTS_PER_PROCESS]
        with suppress(OSError):
            reservation.bind(f"\0meshfleet-tests-{first}")
            atexit.register(reservation.close)
            return cycle(range(first, first + _PORTS_PER_PROCESS))
    raise RuntimeError("all blocks of ports are taken")


class Mosquitto:
    """A broker that can be stopped, killed and started again: same port, same folder.

    Every line of `settings` goes into its configuration; without one about access it lets everybody in.
    """

    def __init__(self, folder: Path, *settings: str) -> None:
        self.address = ServerAddress("127.0.0.1", free_port())
        self._log = register_log("mosquitto", folder / "mosquitto.log")
        config = folder / "mosquitto.conf"
        lines = [f"listener {self.address.port} {self.address.host}", *settings]
        if not any(line.startswith(("allow_anonymous", "password_file")) for line in settings):
            lines.append("allow_anonymous true")
        if os.geteuid() == 0:
            lines.append("user root")  # else it would become a user who may not read the folder
        config.write_text("\n".join([*lines, f"persistence_location {folder}/", ""]))
        self._command = [str(require(MOSQUITTO)), "-c", str(config)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it serves its clients."""
        self._process = _start(self._command, self._log)
        _wait_until_listening(self._process, self.address, self._log)
        _wait_until_served(self.address)

    def reload(self) -> None:
        """Let it read its files again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def stop(self, signal_number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it by a signal, and wait until it is gone."""
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(_TIMEOUT_SECONDS)
            self._process = None


class PostgreSQL:
    """A server with a fresh cluster, which can be stopped, killed and started again: same port, same folder.

    The user is `postgres`, without a password. Each of `settings` is a line of its configuration, such as
    `shared_buffers=1GB`.
    """

    def __init__(self, folder: Path, *settings: str) -> None:
        self.address = ServerAddress("127.0.0.1", free_port())
        self.url = f"postgresql://postgres@{self.address.host}:{self.address.port}"
        program = require(POSTGRESQL)
        as_owner: list[str] = []
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root; Debian's package made it a user of its own, who must get in.
            as_owner = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
            shutil.chown(folder, "postgres", "postgres")
        data = ["-D", str(folder / "data")]
        # To make a cluster takes a second of a processor; to copy one takes a twentieth of that.
        copy = ["cp", "-a", _create_cluster_template(program, tuple(as_owner)), str(folder / "data")]
        subprocess.run([*as_owner, *copy], check=True, capture_output=True, cwd=folder)
        options = ["-h", self.address.host, "-p", str(self.address.port), "-k", str(folder), "-F"]
        options += [part for each in settings for part in ("-c", each)]
        self._command = [*as_owner, str(program), *data, *options]
        self._log = register_log("PostgreSQL", folder / "postgresql.log")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGINT)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = _start(self._command, self._log)
        _wait_until_listening(self._process, self.address, self._log)
        _wait_until_ready(f"{self.url}/postgres")

    def stop(self, signal_number: signal.Signals = signal.SIGINT) -> None:
        """Stop it by a signal, and wait until it is gone. It lets its clients go before that at SIGINT."""
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(_TIMEOUT_SECONDS)
            self._process = None

    def kill(self) -> None:
        """Let all its processes end without a moment to do anything."""
        assert self._process is not None
        children = _children(self._process.pid)
        self.stop(signal.SIGKILL)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        # The next one does not start before all have let go.
        eventually(lambda: not any(map(_is_running, children)), "that all its processes end")

    def kill_backend(self, application: str) -> None:
        """Let the process that last served a client of this name end so; the others then start anew."""
        find = (
            "SELECT pid FROM pg_stat_activity WHERE application_name = %s ORDER BY state_change DESC LIMIT 1"
        )
        with psycopg.connect(f"{self.url}/postgres") as connection:
            found = connection.execute(find, [application]).fetchone()
        assert found is not None
        os.kill(found[0], signal.SIGKILL)


@cache
def _create_cluster_template(program: Path, as_owner: tuple[str, ...]) -> str:
    """Make a cluster that nobody starts: others are copies of it. All workers share one."""
    folder = shared_folder() / "cluster"
    with (shared_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            half = Path(mkdtemp(dir=shared_folder()))  # what fails half-way is not used
            if as_owner:
                shutil.chown(half, "postgres", "postgres")
            made = ["-D", f"{half}/data", "-U", "postgres", "-A", "trust", "--no-sync"]
            command = [*as_owner, str(program.with_name("initdb")), *made]
            subprocess.run(command, check=True, capture_output=True, cwd=half)
            half.rename(folder)
    return f"{folder}/data"


@cache
def shared_folder() -> Path:
    """Where workers find what one of them has made. The process that starts them makes it and ends last."""
    if _SHARED_VARIABLE not in os.environ:
        folder = mkdtemp(prefix="meshfleet-shared-")
        os.environ[_SHARED_VARIABLE] = folder
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        Path(folder).chmod(0o711)  # the owner of a cluster must get through
    return Path(os.environ[_SHARED_VARIABLE])


def _children(parent: int) -> list[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text("utf-8")
    return [int(number) for number in text.split()]


def _is_running(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text("utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@contextmanager
def postgresql(*settings: str) -> Iterator[ServerAddress]:
    """Run a PostgreSQL server with a fresh cluster, for as long as the block lasts; see `PostgreSQL`."""
    with postgresql_folder() as folder, PostgreSQL(folder, *settings) as server:
        yield server.address


@contextmanager
def postgresql_folder() -> Iterator[Path]:
    """Make a folder for a cluster, for as long as the block lasts.

    It is in memory where there is room: each test makes and drops a database of hundreds of files, and on a
    disk the system spends three times as long on that.
    """
    with TemporaryDirectory(prefix="meshfleet-postgresql-", dir=_memory_folder()) as name:
        yield Path(name)


def _memory_folder() -> Path | None:
    try:
        found = os.statvfs(_IN_MEMORY)
    except OSError:
        return None
    has_room = found.f_bavail * found.f_frsize > _MIN_FREE_BYTES
    return _IN_MEMORY if has_room and os.access(_IN_MEMORY, os.W_OK) else None


def _wait_until_served(address: ServerAddress) -> None:
    """Wait until mosquitto ends a connection that we closed: before that it listens but forgets SIGTERM."""
    with socket.create_connection(address, _TIMEOUT_SECONDS) as probe, suppress(ConnectionResetError):
        probe.shutdown(socket.SHUT_WR)
        while probe.recv(1024):  # over TLS it complains first
            pass


def _wait_until_ready(server: str) -> None:
    """PostgreSQL that listens may still refuse, because it is starting up."""

    def answers() -> bool:
        try:
            psycopg.connect(server).close()
        except psycopg.OperationalError as exc:
            raise AssertionError("it refuses") from exc
        return True

    eventually(answers, "that PostgreSQL answers", patience=_TIMEOUT_SECONDS)


def _start(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)


def _wait_until_listening(process: subprocess.Popen[bytes], address: ServerAddress, log: Path) -> None:
    def listens() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} has ended: {log.read_text(errors='replace')[-1000:]}")
        with closing(socket.socket()) as probe:
            return probe.connect_ex(address) == 0

    eventually(listens, f"that {process.args!r} listens", patience=_TIMEOUT_SECONDS)
