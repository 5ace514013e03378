"""Checks that the addresses chosen for `make run` are free, before anything is set up or built.

It runs with the system's Python, 3.8 or later, since there may be no virtual environment yet:
check_ports.py [--http PLACE] [--mqtt PLACE]
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def faults(name: str, place: str) -> Iterator[str]:
    """Try to listen at HOST:PORT; give what is wrong with it."""
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, int(port)), family=family).close()
    except (ValueError, OverflowError):
        yield f"{name}={place} is not a port, nor an address such as 127.0.0.1:8081."
    except OSError as exc:
        yield f"Cannot listen at {place}: {exc.strerror}. Choose another port: make run {name}=PORT"


def main(arguments: list[str]) -> int:
    """Print a sentence for each address that cannot be used; give the exit status."""
    chosen = zip(arguments[::2], arguments[1::2])  # noqa: B905 # `strict` needs Python 3.10
    wrong = [
        fault for flag, place in chosen if place != "off" for fault in faults(flag.lstrip("-").upper(), place)
    ]
    for fault in wrong:
        print(fault, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
