"""Checks that the addresses chosen for `make run` are free, before anything is set up or built.

It runs with the system's Python, 3.8 or later, since there may be no virtual environment yet:
check_ports.py [--http HOST:PORT] [--mqtt HOST:PORT]
"""

from __future__ import annotations

import socket
import sys
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
        yield f"Cannot listen at {address}: {exc.strerror}. Choose another port: make run {name}=PORT"


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
