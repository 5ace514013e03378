"""Flood of connections without valid credentials at a given rate, from a separate process.

Run as a program with a port, the connections per second, and the total number. It prints the outcomes as JSON
to standard output.
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
_TIMEOUT = 30.0


def _try_log_in(port: int, number: int, at: float) -> str:
    """Log in as an unclaimed gateway, not before a time. Return the outcome."""
    time.sleep(max(0.0, at - time.monotonic()))
    connect = encode_packet(build_connect(Credentials(f"0200{number:08x}", "wrong")))
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT) as connection:
            connection.sendall(connect)
            return "answered" if connection.recv(4) else "unread"
    except ConnectionError:
        return "unread"


def main(port: int, rate: int, total: int) -> None:
    """Send the flood, and print the outcomes."""
    started = time.monotonic()
    with ThreadPoolExecutor(_THREADS) as threads:
        start_times = (started + number / rate for number in count())
        outcomes = Counter(threads.map(_try_log_in, [port] * total, range(total), start_times))
    seconds = time.monotonic() - started
    report = {"answered": outcomes["answered"], "unread": outcomes["unread"], "seconds": seconds}
    print(json.dumps(report))  # noqa: T201 # the output of the program


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
