"""Bursts of reports, as after an outage, to clients of other makes; mosquitto is the control."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from queue import Queue
from signal import SIGCONT, SIGSTOP
from typing import TYPE_CHECKING

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from meshfleet.wire.mqtt.packets import Connack, Connect, Puback, Publish
from meshfleet.wire.rest import Role
from tests.broker.raw import Raw
from tests.cli.outside import PATIENCE
from tests.eventually import eventually, eventually_async
from tests.parts import MOSQUITTO_SUB, need
from tests.scenarios.serving import Service, loopback
from tests.servers import Mosquitto
from tests.service.mqtt.house import Credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from paho.mqtt.client import ConnectFlags, MQTTMessage

    from tests.servers import Address

pytestmark = [pytest.mark.anyio, pytest.mark.part("long")]

G = "02005e000001"
TOPIC = f"mt/gateway/{G}/device/02005e0000aa/measurement/8100"
REPORTS = "mt/gateway/+/device/#"
ANYBODY = Credentials("anybody", "anything")

_AT_ONCE = 20_000
"""Reports that are published without waiting for a PUBACK; there are 65,535 packet ids."""


def reports(count: int) -> list[bytes]:
    """Reports that tell their order."""
    return [b'{"time":"2026-01-01T00:00:00.%03dZ","value":"%08x"}' % (n % 1000, n) for n in range(count)]


async def publish(client: Raw, payloads: Sequence[bytes]) -> None:
    """Publish as fast as the broker reads, and wait for each PUBACK."""
    for start in range(0, len(payloads), _AT_ONCE):
        some = payloads[start : start + _AT_ONCE]
        client.send(*(Publish(TOPIC, payload, 1, packet_id=n) for n, payload in enumerate(some, 1)))
        for packet_id in range(1, len(some) + 1):
            assert await client.expect(Puback) == Puback(packet_id)


@contextmanager
def mosquitto_sub(place: Address, who: Credentials, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `mosquitto_sub -q 1`, which writes a line for each message."""
    given = ["-h", place.host, "-p", str(place.port), "-u", who.user, "-P", who.password, "-V", "311"]
    asked = ["-q", "1", "-t", REPORTS, "-F", "%p", "-d"]
    with output.open("wb") as file:
        command = ["stdbuf", "-oL", str(need(MOSQUITTO_SUB)), *given, *asked]
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        eventually(lambda: b"Subscribed" in output.read_bytes())
        yield process
    finally:
        process.kill()
        process.wait()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds. 100,000 messages take a busy machine some minutes."""
    await eventually_async(holds, patience=20 * PATIENCE)


def taken(output: Path) -> list[bytes]:
    """Payloads that mosquitto_sub has written so far."""
    return [line for line in output.read_bytes().splitlines() if line.startswith(b"{")]


class PersistentPaho:
    """A client with paho and a session that stays while it is away."""

    def __init__(self, place: Address, who: Credentials) -> None:
        self._place = place
        self._who = who
        self.came: list[bytes] = []

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connect, and subscribe if there is no session."""
        client = Client(CallbackAPIVersion.VERSION2, "paho", clean_session=False)
        client.username_pw_set(*self._who)
        ready: Queue[str] = Queue()
        client.on_message = self._take
        client.on_subscribe = lambda *_: ready.put("subscribed")

        def subscribe(_: object, __: object, flags: ConnectFlags, *___: object) -> None:
            if flags.session_present:
                ready.put("resumed")
            else:
                client.subscribe(REPORTS, 1)

        client.on_connect = subscribe
        client.connect(*self._place)
        client.loop_start()
        try:
            assert ready.get(timeout=PATIENCE)
            yield
        finally:
            client.disconnect()
            client.loop_stop()

    def _take(self, _: object, __: object, message: MQTTMessage) -> None:
        self.came.append(bytes(message.payload))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, *loopback("--mqtt"), "--limits-publish-rate", "1000000") as running:
        yield running


@pytest.mark.rule("broker-24")
@pytest.mark.parametrize("count", [1500, 10_000, 100_000])
async def test_a_burst_arrives_whole_and_in_order(service: Service, count: int, tmp_path: Path) -> None:
    place, output, burst = service.mqtt["mqtt"], tmp_path / "sub", reports(count)
    watching, keeping = service.person("watching", Role.VIEWER), service.person("keeping", Role.VIEWER)
    absent = PersistentPaho(place, keeping)
    with absent.connected():
        pass
    gateway = await service.guest(service.claim(G))
    with mosquitto_sub(place, watching, output):
        await publish(gateway, burst)
        with absent.connected():
            await until(lambda: len(absent.came) >= count and output.stat().st_size >= count * len(burst[0]))
            await until(lambda: len(taken(output)) >= count)
    assert taken(output) == burst
    assert absent.came == burst
    await service.hang_up()


async def test_mosquitto_drops_what_exceeds_its_queue(tmp_path: Path) -> None:
    """The control: the same burst, publisher and client with another broker as it is installed."""
    burst = reports(10_000)
    with Mosquitto(tmp_path) as mosquitto:
        absent = PersistentPaho(mosquitto.address, ANYBODY)
        with absent.connected():
            pass
        gateway = await Raw.open(mosquitto.address.port)
        gateway.send(Connect(G))
        assert await gateway.expect(Connack) == Connack()
        await publish(gateway, burst)
        with absent.connected():
            await until(lambda: len(absent.came) >= 1000)
            gateway.send(Publish(TOPIC, b"last", 1, packet_id=1))
            await until(lambda: absent.came[-1] == b"last")
        await gateway.close()
    assert len(absent.came) < len(burst) // 2
    assert absent.came[:1000] == burst[:1000]


@pytest.mark.rule("broker-26")
async def test_a_reader_that_stops_is_cut_off_with_a_warning_and_memory_stays_bounded(
    service: Service, tmp_path: Path
) -> None:
    watching = service.person("watching", Role.VIEWER)
    gateway = await service.guest(service.claim(G))
    before = service.memory
    with mosquitto_sub(service.mqtt["mqtt"], watching, tmp_path / "sub") as process:
        process.send_signal(SIGSTOP)
        used = [before]
        most = before + 250  # its queue of 64 MiB, and what a round and the kernel hold

        async def publish_more() -> bool:
            await publish(gateway, [bytes(60_000)] * 100)
            used.append(service.memory)
            return used[-1] >= most or _cut_off(service)

        await eventually_async(publish_more, "the end of its connection", patience=10 * PATIENCE)
        assert max(used) < most
        process.send_signal(SIGCONT)
    await service.hang_up()
    code, errors = service.stop()
    assert code == 0
    (line,) = [line for line in errors.splitlines() if "is cut off" in line]
    assert "WARNING" in line
    assert "of user watching at 127.0.0.1" in line
    assert "limits.queue-bytes is 67108864" in line


def _cut_off(service: Service) -> bool:
    return "meshfleet_mqtt_cut_off_total 1.0" in service.ask("GET", "/metrics")
