"""Connections without valid credentials, so many a second, from a process of their own.

Run as a program, with a port, how many a second, and how many in all.
It writes to standard output what became of them, as JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from meshfleet.mqtt.codec.encoder import encode_packet
from tests.service.embedded_broker.mqtt_accounts import Credentials
from tests.service.embedded_broker.running_broker import build_connect

_THREADS = 32
_PATIENCE = 30.0


def _try(port: int, number: int, at: float) -> str:
    """Log in as a gateway that nobody has claimed, not before a moment. Return what became of it."""
    time.sleep(max(0.0, at - time.monotonic()))
    attempt = encode_packet(build_connect(Credentials(f"0200{number:08x}", "wrong")))
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE) as connection:
            connection.sendall(attempt)
            return "answered" if connection.recv(4) else "unread"
    except ConnectionError:
        return "unread"


def main(port: int, rate: int, total: int) -> None:
    """Send the flood, and report."""
    began = time.monotonic()
    with ThreadPoolExecutor(_THREADS) as threads:
        moments = (began + number / rate for number in count())
        came = Counter(threads.map(_try, [port] * total, range(total), moments))
    seconds = time.monotonic() - began
    told = {"answered": came["answered"], "unread": came["unread"], "seconds": seconds}
    print(json.dumps(told))  # noqa: T201 # that is its output


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
