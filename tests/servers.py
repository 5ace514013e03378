"""Servers that tests start on free ports of the loopback interface, and stop by their process."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from tests.parts import MOSQUITTO, POSTGRESQL, need

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PATIENCE = 30.0
"""Seconds until a server must listen; reached only when it is broken."""


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


def free_port() -> int:
    """A port that nobody listens on."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def mosquitto(folder: Path) -> Iterator[Address]:
    """Run a broker that lets everybody in."""
    program = need(MOSQUITTO)
    address = Address("127.0.0.1", free_port())
    config = folder / "mosquitto.conf"
    config.write_text(f"listener {address.port} {address.host}\nallow_anonymous true\npersistence false\n")
    with _running([str(program), "-c", str(config)], address, folder / "mosquitto.log"):
        yield address


@contextmanager
def postgresql() -> Iterator[Address]:
    """Run a PostgreSQL server with a fresh cluster; the user is `postgres`, without a password."""
    program = need(POSTGRESQL)
    address = Address("127.0.0.1", free_port())
    as_owner: list[str] = []
    with TemporaryDirectory(prefix="meshfleet-postgresql-") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root; Debian's package made it a user of its own, who must get in.
            as_owner = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
            shutil.chown(folder, "postgres", "postgres")
        data = ["-D", str(folder / "data")]
        initdb = [str(program.with_name("initdb")), *data, "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run([*as_owner, *initdb], check=True, capture_output=True, cwd=folder)
        options = ["-h", address.host, "-p", str(address.port), "-k", str(folder), "-F"]
        with _running([*as_owner, str(program), *data, *options], address, folder / "postgresql.log"):
            yield address


@contextmanager
def _running(command: Sequence[str], address: Address, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)
    try:
        _wait(process, address, log)
        yield
    finally:
        process.terminate()
        process.wait(_PATIENCE)


def _wait(process: subprocess.Popen[bytes], address: Address, log: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < until:
        with closing(socket.socket()) as probe:
            if probe.connect_ex(address) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} does not listen: {log.read_text(errors='replace')[-1000:]}")
