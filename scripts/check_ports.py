"""Checks that the addresses chosen for `make run` are free, before anything is set up or built.

It runs with the system's Python, 3.8 or later, since there may be no virtual environment yet:
check_ports.py [--http HOST:PORT] [--mqtt HOST:PORT]
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def faults(name: str, address: str) -> Iterator[str]:
    """Try to listen at HOST:PORT, and yield a message if that fails."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, int(port)), family=family).close()
    except (ValueError, OverflowError):
        yield f"{name}={address} is not a port or an address such as 127.0.0.1:8081."
    except OSError as exc:
        reason = exc.strerror
        if exc.errno == errno.EADDRINUSE:
            reason = f"the port is in use by {describe_owner(int(port))}"
        yield f"Cannot listen at {address}: {reason}. Choose another port: make run {name}=PORT"


def describe_owner(port: int) -> str:
    """Describe the program that listens on a port; on Linux by name and process id, if they can be seen."""
    sockets = {f"socket:[{inode}]" for inode in list_listening_inodes(port)}
    for link in glob("/proc/[0-9]*/fd/*"):  # noqa: PTH207 # Path.glob follows the links
        with suppress(OSError):  # processes end, and those of other users are hidden
            if os.readlink(link) in sockets:  # noqa: PTH115 # Path.readlink needs Python 3.9
                process = Path(link).parents[1]
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
    return f"a program of another user (as root, `ss -ltnp sport = :{port}` shows it)"


def list_listening_inodes(port: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on a port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):  # not Linux, or no IPv6
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, *rest = line.split()
                if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                    yield rest[5]


def main(arguments: list[str]) -> int:
    """Print a message for each address that cannot be used. Return the exit status."""
    options = zip(arguments[::2], arguments[1::2])  # noqa: B905 # `strict` needs Python 3.10
    messages = [
        fault
        for flag, address in options
        if address != "off"
        for fault in faults(flag.lstrip("-").upper(), address)
    ]
    for fault in messages:
        print(fault, file=sys.stderr)
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
