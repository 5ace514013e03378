"""Hostile gateways, which send malformed and excessive data as fast as the broker accepts it."""

from __future__ import annotations

import random
import select
import socket
import time
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Connack, Publish
from meshfleet.protocol.times import format_millis
from tests.cli.programs import TEST_TIMEOUT
from tests.service.embedded_broker.running_broker import build_connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.servers import ServerAddress
    from tests.service.embedded_broker.mqtt_accounts import Credentials


def _now(ahead: int = 0) -> str:
    """Return a plausible time as JSON, `ahead` milliseconds from now.

    Reports with implausible times would not change any state.
    """
    return f'"{format_millis(time.time_ns() // 1_000_000 + ahead)}"'


class Attacker:
    """Client with a valid account that sends the same bytes repeatedly, and reconnects when disconnected."""

    def __init__(
        self, address: ServerAddress, credentials: Credentials, attack: bytes, *, client_id: str
    ) -> None:
        self.rounds = 0
        """Number of times that all bytes were accepted, or the connection was closed."""
        self._address = address
        self._connect = encode_packet(build_connect(credentials, client_id=client_id))
        self._attack = memoryview(attack)
        self._is_over = Event()
        self._thread = Thread(target=self._run, name=f"attacker {client_id}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(TEST_TIMEOUT)

    def _run(self) -> None:
        while not self._is_over.is_set():
            with (
                suppress(OSError),
                socket.create_connection(self._address, timeout=TEST_TIMEOUT) as connection,
            ):
                connection.sendall(self._connect)
                if connection.recv(4) == encode_packet(Connack()):
                    connection.settimeout(0)
                    try:
                        self._send_until_stopped(connection)
                    finally:
                        self.rounds += 1

    def _send_until_stopped(self, connection: socket.socket) -> None:
        remaining = self._attack
        while not self._is_over.is_set():
            readable, writable, _ = select.select([connection], [connection], [], 0.1)
            if readable and not connection.recv(0x1_0000):
                return
            if writable:
                remaining = remaining[connection.send(remaining[:0x1_0000]) :]
            if not remaining:
                self.rounds += 1
                remaining = self._attack


def build_attacks(gateway: str) -> dict[str, bytes]:
    """Return the bytes to send, by kind of attack."""
    rng = random.Random(gateway)  # noqa: S311 # not for secrets
    return {
        name: _encode_messages(list(build(f"mt/gateway/{gateway}/device", rng)))
        for name, build in _ATTACKS.items()
    } | {"no packets": rng.randbytes(100_000)}


def _encode_messages(messages: Sequence[tuple[str, str | bytes]]) -> bytes:
    return b"".join(
        encode_packet(
            Publish(topic, payload.encode() if isinstance(payload, str) else payload, 1, packet_id=number)
        )
        for number, (topic, payload) in enumerate(messages, start=1)
    )


def _send_garbage(prefix: str, rng: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """Yield payloads that are not JSON, JSON that is not a report, and reports with extreme values."""
    device = f"{prefix}/02005e0000cc"
    for _ in range(50):
        yield f"{device}/measurement/8800", rng.randbytes(rng.randrange(200))
        yield f"{device}/heartbeat", rng.choice(['{"time":', "[]", "null", "{}", '"', "\ufeff{}"])
        for value in _VALUES:
            yield f"{device}/property-decoded/odd", f'{{"time":{_now()},"value":{value}}}'
        for number in ("9" * 30, "-1", "1e400", "9" * 5000, "true", "1.5", '"\\ud800"'):
            yield f"{device}/measurement-error/8800", f'{{"time":{_now()},"seq":1,"error":{number}}}'
            yield f"{device}/heartbeat", f'{{"time":{_now()},"seq":1,"status":{number}}}'
            yield (
                f"{device}/rssi",
                f'{{"time":{_now()},"rssi":{number},"channel":37,"parent":"02005e000001"}}',
            )
        yield f"{device}/property/8002", f'{{"time":{_now()},"value":"{rng.randbytes(9).hex()}"}}'
        yield f"{device}/property-decoded/firmware-version", f'{{"time":{_now()},"value":"{"9" * 90}.1.1"}}'


_VALUES = (
    "[" * 500 + "]" * 500,
    "[" * 5000 + "]" * 5000,
    '{"a":' * 900 + "1" + "}" * 900,
    "9" * 400,
    "-" + "9" * 5000,
    "1e308",
    "1e309",
    "NaN",
    '"\\u0000"',
    '"\\ud800"',
    '"' + "\U0001f9ff" * 3000 + '"',
    "true",
    '{"a":1,"a":2}',
)
"""JSON values that a decoder may fail on."""


def _send_new_names(prefix: str, rng: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """Yield reports on new topics: devices, identifiers and names that were never used before."""
    for number in range(1000):
        device = f"{prefix}/{rng.randrange(1 << 48):012x}"
        name = rng.choice([f"name-{number}", "x" * 3000, "=cmd|' /C calc'!A0", "ä" * 200, "..", "n"])
        yield f"{device}/property-decoded/{name}", f'{{"time":{_now()},"value":{number}}}'
        yield (
            f"{device}/measurement/{rng.randrange(1 << 32):08x}",
            f'{{"time":{_now()},"seq":1,"value":"00"}}',
        )
        yield f"{device}/{rng.choice(['', 'event', 'heartbeat/1', 'no-kind/8800', '/' * 40])}", "{}"


def _send_oversized(prefix: str, rng: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """Yield reports that exceed the limits of payloads and packets."""
    for size in (60_000, 70_000, 200_000, 300_000, 1_000_000):
        value = rng.randbytes(size // 2).hex()
        yield f"{prefix}/02005e0000cc/measurement/8800", f'{{"time":{_now()},"seq":1,"value":"{value}"}}'


def _send_odd_times(prefix: str, rng: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """Yield reports with times all over the calendar, and beyond it."""
    device = f"{prefix}/02005e0000dd"
    for _ in range(1000):
        year, offset = rng.randrange(10_000), rng.choice(["Z", "+23:59", "-23:59", "", "+99:99"])
        fraction = "9" * rng.choice([0, 3, 9, 400])
        timestamp = f"{year:04}-{rng.randrange(14):02}-{rng.randrange(33):02}T00:00:00.{fraction}{offset}"
        yield f"{device}/measurement/8800", f'{{"time":"{timestamp}","seq":1,"value":"0100"}}'
        yield f"{device}/rssi", f'{{"time":"{timestamp}","rssi":-60,"channel":37,"parent":"02005e000001"}}'
        yield f"{device}/heartbeat", f'{{"time":"{timestamp}","seq":1,"status":0}}'


def _send_repetitions(prefix: str, rng: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """Yield one report of each kind repeatedly."""
    device, timestamp = f"{prefix}/{rng.randrange(1 << 48):012x}", _now()
    for _ in range(1000):
        yield f"{device}/heartbeat", f'{{"time":{timestamp},"seq":1,"status":0,"lastCount":1}}'
        yield f"{device}/rssi", f'{{"time":{timestamp},"rssi":-60,"channel":37,"parent":"02005e000001"}}'
        yield f"{device}/property/8100", f'{{"time":{timestamp},"value":"32"}}'


def _send_many_parents(prefix: str, rng: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """Yield readings of one device at thousands of parents, each with minutes of its own, some long ago."""
    for number in range(3000):
        parent, timestamp = f"{rng.randrange(1 << 48):012x}", _now(-60_000 * (number % 100))
        yield (
            f"{prefix}/02005e0000ef/rssi",
            f'{{"time":{timestamp},"rssi":-60,"channel":37,"parent":"{parent}"}}',
        )


def _send_many_devices(prefix: str, rng: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """Yield reports of thousands of new devices, two of each."""
    for _ in range(1500):
        device = f"{prefix}/{rng.randrange(1 << 48):012x}"
        yield f"{device}/heartbeat", f'{{"time":{_now()},"seq":1,"status":0,"lastCount":1}}'
        yield f"{device}/measurement/8800", f'{{"time":{_now()},"seq":1,"value":"0100"}}'


def _send_many_samples(prefix: str, _: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """Yield thousands of samples of one device."""
    for number in range(5000):
        payload = f'{{"time":{_now(-number)},"seq":{number % 256},"value":"0100"}}'
        yield f"{prefix}/02005e0000f0/measurement/8800", payload


_ATTACKS: dict[str, Callable[[str, random.Random], Iterator[tuple[str, str | bytes]]]] = {
    "garbage": _send_garbage,
    "names": _send_new_names,
    "large": _send_oversized,
    "times": _send_odd_times,
    "repeats": _send_repetitions,
    "parents": _send_many_parents,
    "devices": _send_many_devices,
    "samples": _send_many_samples,
}
