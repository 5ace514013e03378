"""Gateways that mean harm: they send what nobody should, as fast as it is taken from them."""

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
    """A time that is believed, as JSON: what is not, reaches no state; `ahead` are milliseconds."""
    return f'"{format_millis(time.time_ns() // 1_000_000 + ahead)}"'


class Attacker:
    """Somebody with an account who sends the same bytes again and again, and comes back when thrown out."""

    def __init__(self, place: ServerAddress, who: Credentials, attack: bytes, *, client_id: str) -> None:
        self.rounds = 0
        """How often all of it was taken, or ended the connection."""
        self._place = place
        self._connect = encode_packet(build_connect(who, client_id=client_id))
        self._attack = memoryview(attack)
        self._is_over = Event()
        self._thread = Thread(target=self._run, name=f"vandal {client_id}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(TEST_TIMEOUT)

    def _run(self) -> None:
        while not self._is_over.is_set():
            with suppress(OSError), socket.create_connection(self._place, timeout=TEST_TIMEOUT) as connection:
                connection.sendall(self._connect)
                if connection.recv(4) == encode_packet(Connack()):
                    connection.settimeout(0)
                    try:
                        self._send_until_stopped(connection)
                    finally:
                        self.rounds += 1

    def _send_until_stopped(self, connection: socket.socket) -> None:
        rest = self._attack
        while not self._is_over.is_set():
            readable, writable, _ = select.select([connection], [connection], [], 0.1)
            if readable and not connection.recv(0x1_0000):
                return
            if writable:
                rest = rest[connection.send(rest[:0x1_0000]) :]
            if not rest:
                self.rounds += 1
                rest = self._attack


def build_attacks(gateway: str) -> dict[str, bytes]:
    """What to send, by what is wrong with it."""
    chance = random.Random(gateway)  # noqa: S311 # no secret
    return {
        name: _packets(list(make(f"mt/gateway/{gateway}/device", chance))) for name, make in _ATTACKS.items()
    } | {"no packets": chance.randbytes(100_000)}


def _packets(messages: Sequence[tuple[str, str | bytes]]) -> bytes:
    return b"".join(
        encode_packet(
            Publish(topic, payload.encode() if isinstance(payload, str) else payload, 1, packet_id=number)
        )
        for number, (topic, payload) in enumerate(messages, start=1)
    )


def _garbage(front: str, chance: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """No JSON, and JSON that is no report, or one that is hard to take."""
    device = f"{front}/02005e0000cc"
    for _ in range(50):
        yield f"{device}/measurement/8800", chance.randbytes(chance.randrange(200))
        yield f"{device}/heartbeat", chance.choice(['{"time":', "[]", "null", "{}", '"', "\ufeff{}"])
        for value in _VALUES:
            yield f"{device}/property-decoded/odd", f'{{"time":{_now()},"value":{value}}}'
        for number in ("9" * 30, "-1", "1e400", "9" * 5000, "true", "1.5", '"\\ud800"'):
            yield f"{device}/measurement-error/8800", f'{{"time":{_now()},"seq":1,"error":{number}}}'
            yield f"{device}/heartbeat", f'{{"time":{_now()},"seq":1,"status":{number}}}'
            yield (
                f"{device}/rssi",
                f'{{"time":{_now()},"rssi":{number},"channel":37,"parent":"02005e000001"}}',
            )
        yield f"{device}/property/8002", f'{{"time":{_now()},"value":"{chance.randbytes(9).hex()}"}}'
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
"""JSON that somebody may stumble over."""


def _names(front: str, chance: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """Topics that nobody has heard before: devices, identifiers and names."""
    for number in range(1000):
        device = f"{front}/{chance.randrange(1 << 48):012x}"
        name = chance.choice([f"name-{number}", "x" * 3000, "=cmd|' /C calc'!A0", "ä" * 200, "..", "n"])
        yield f"{device}/property-decoded/{name}", f'{{"time":{_now()},"value":{number}}}'
        yield (
            f"{device}/measurement/{chance.randrange(1 << 32):08x}",
            f'{{"time":{_now()},"seq":1,"value":"00"}}',
        )
        yield f"{device}/{chance.choice(['', 'event', 'heartbeat/1', 'no-kind/8800', '/' * 40])}", "{}"


def _large(front: str, chance: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """More than a report may have, and more than a packet may have."""
    for size in (60_000, 70_000, 200_000, 300_000, 1_000_000):
        value = chance.randbytes(size // 2).hex()
        yield f"{front}/02005e0000cc/measurement/8800", f'{{"time":{_now()},"seq":1,"value":"{value}"}}'


def _times(front: str, chance: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """Times all over the calendar, and beyond it."""
    device = f"{front}/02005e0000dd"
    for _ in range(1000):
        year, offset = chance.randrange(10_000), chance.choice(["Z", "+23:59", "-23:59", "", "+99:99"])
        fraction = "9" * chance.choice([0, 3, 9, 400])
        moment = f"{year:04}-{chance.randrange(14):02}-{chance.randrange(33):02}T00:00:00.{fraction}{offset}"
        yield f"{device}/measurement/8800", f'{{"time":"{moment}","seq":1,"value":"0100"}}'
        yield f"{device}/rssi", f'{{"time":"{moment}","rssi":-60,"channel":37,"parent":"02005e000001"}}'
        yield f"{device}/heartbeat", f'{{"time":"{moment}","seq":1,"status":0}}'


def _repeats(front: str, chance: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """One reading of each kind, again and again."""
    device, moment = f"{front}/{chance.randrange(1 << 48):012x}", _now()
    for _ in range(1000):
        yield f"{device}/heartbeat", f'{{"time":{moment},"seq":1,"status":0,"lastCount":1}}'
        yield f"{device}/rssi", f'{{"time":{moment},"rssi":-60,"channel":37,"parent":"02005e000001"}}'
        yield f"{device}/property/8100", f'{{"time":{moment},"value":"32"}}'


def _parents(front: str, chance: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """A device that everybody hears: each parent is a minute of its own, also of minutes long ago."""
    for number in range(3000):
        parent, moment = f"{chance.randrange(1 << 48):012x}", _now(-60_000 * (number % 100))
        yield (
            f"{front}/02005e0000ef/rssi",
            f'{{"time":{moment},"rssi":-60,"channel":37,"parent":"{parent}"}}',
        )


def _devices(front: str, chance: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """Devices that nobody has heard before, each once."""
    for _ in range(1500):
        device = f"{front}/{chance.randrange(1 << 48):012x}"
        yield f"{device}/heartbeat", f'{{"time":{_now()},"seq":1,"status":0,"lastCount":1}}'
        yield f"{device}/measurement/8800", f'{{"time":{_now()},"seq":1,"value":"0100"}}'


def _samples(front: str, _: random.Random) -> Iterator[tuple[str, str | bytes]]:
    """One device that has very much to say."""
    for number in range(5000):
        payload = f'{{"time":{_now(-number)},"seq":{number % 256},"value":"0100"}}'
        yield f"{front}/02005e0000f0/measurement/8800", payload


_ATTACKS: dict[str, Callable[[str, random.Random], Iterator[tuple[str, str | bytes]]]] = {
    "garbage": _garbage,
    "names": _names,
    "large": _large,
    "times": _times,
    "repeats": _repeats,
    "parents": _parents,
    "devices": _devices,
    "samples": _samples,
}
