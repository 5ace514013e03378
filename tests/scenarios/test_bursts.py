"""Bursts of reports, as after an outage, to clients of other implementations; mosquitto for comparison."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from queue import Queue
from signal import SIGCONT, SIGSTOP
from typing import TYPE_CHECKING

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from meshfleet.mqtt.codec.packets import Connack, Connect, Puback, Publish
from meshfleet.rest.accounts import Role
from tests.cli.programs import TEST_TIMEOUT
from tests.eventually import eventually, eventually_async
from tests.external_tools import MOSQUITTO_SUB, require
from tests.mqtt.broker.raw_client import RawClient
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.servers import Mosquitto
from tests.service.embedded_broker.mqtt_accounts import Credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from paho.mqtt.client import ConnectFlags, MQTTMessage

    from tests.servers import ServerAddress

pytestmark = [pytest.mark.anyio, pytest.mark.part("long")]

G = "02005e000001"
TOPIC = f"mt/gateway/{G}/device/02005e0000aa/measurement/8100"
REPORTS = "mt/gateway/+/device/#"
ANY_CREDENTIALS = Credentials("any-user", "any-password")

_BATCH_SIZE = 20_000
"""Reports that are published without waiting for a PUBACK; there are 65,535 packet ids."""


def build_reports(count: int) -> list[bytes]:
    """Build reports whose values show their order."""
    return [b'{"time":"2026-01-01T00:00:00.%03dZ","value":"%08x"}' % (n % 1000, n) for n in range(count)]


async def publish(client: RawClient, payloads: Sequence[bytes]) -> None:
    """Publish as fast as the broker reads, and wait for each PUBACK."""
    for start in range(0, len(payloads), _BATCH_SIZE):
        batch = payloads[start : start + _BATCH_SIZE]
        client.send(*(Publish(TOPIC, payload, 1, packet_id=n) for n, payload in enumerate(batch, 1)))
        for packet_id in range(1, len(batch) + 1):
            assert await client.expect(Puback) == Puback(packet_id)


@contextmanager
def mosquitto_sub(
    address: ServerAddress, credentials: Credentials, output: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `mosquitto_sub -q 1`, which prints a line for each message."""
    options = [
        "-h",
        address.host,
        "-p",
        str(address.port),
        "-u",
        credentials.user,
        "-P",
        credentials.password,
        "-V",
        "311",
    ]
    subscription = ["-q", "1", "-t", REPORTS, "-F", "%p", "-d"]
    with output.open("wb") as file:
        command = ["stdbuf", "-oL", str(require(MOSQUITTO_SUB)), *options, *subscription]
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        eventually(lambda: b"Subscribed" in output.read_bytes())
        yield process
    finally:
        process.kill()
        process.wait()


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true. 100,000 messages take a busy machine some minutes."""
    await eventually_async(condition, patience=20 * TEST_TIMEOUT)


def received_payloads(output: Path) -> list[bytes]:
    """Return the payloads that mosquitto_sub has printed so far."""
    return [line for line in output.read_bytes().splitlines() if line.startswith(b"{")]


class PersistentPaho:
    """Client with paho-mqtt and a session that outlives its connections."""

    def __init__(self, address: ServerAddress, credentials: Credentials) -> None:
        self._address = address
        self._credentials = credentials
        self.received: list[bytes] = []

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connect, and subscribe unless there is a session."""
        client = Client(CallbackAPIVersion.VERSION2, "paho", clean_session=False)
        client.username_pw_set(*self._credentials)
        ready: Queue[str] = Queue()
        client.on_message = self._on_message
        client.on_subscribe = lambda *_: ready.put("subscribed")

        def subscribe(_: object, __: object, flags: ConnectFlags, *___: object) -> None:
            if flags.session_present:
                ready.put("resumed")
            else:
                client.subscribe(REPORTS, 1)

        client.on_connect = subscribe
        client.connect(*self._address)
        client.loop_start()
        try:
            assert ready.get(timeout=TEST_TIMEOUT)
            yield
        finally:
            client.disconnect()
            client.loop_stop()

    def _on_message(self, _: object, __: object, message: MQTTMessage) -> None:
        self.received.append(bytes(message.payload))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt"), "--limits-publish-rate", "1000000") as running:
        yield running


@pytest.mark.rule("broker-24")
@pytest.mark.parametrize("count", [1500, 10_000, 100_000])
async def test_a_burst_arrives_completely_and_in_order(
    service: ServiceProcess, count: int, tmp_path: Path
) -> None:
    address, output, burst = service.mqtt["mqtt"], tmp_path / "sub", build_reports(count)
    watching, keeping = service.add_user("watching", Role.VIEWER), service.add_user("keeping", Role.VIEWER)
    absent = PersistentPaho(address, keeping)
    with absent.connected():
        pass
    gateway = await service.connect(service.claim(G))
    with mosquitto_sub(address, watching, output):
        await publish(gateway, burst)
        with absent.connected():
            await wait_until(
                lambda: len(absent.received) >= count and output.stat().st_size >= count * len(burst[0])
            )
            await wait_until(lambda: len(received_payloads(output)) >= count)
    assert received_payloads(output) == burst
    assert absent.received == burst
    await service.disconnect_all()


async def test_mosquitto_drops_messages_that_exceed_its_queue(tmp_path: Path) -> None:
    """Send the same burst to mosquitto with its default settings, for comparison."""
    burst = build_reports(10_000)
    with Mosquitto(tmp_path) as mosquitto:
        absent = PersistentPaho(mosquitto.address, ANY_CREDENTIALS)
        with absent.connected():
            pass
        gateway = await RawClient.open(mosquitto.address.port)
        gateway.send(Connect(G))
        assert await gateway.expect(Connack) == Connack()
        await publish(gateway, burst)
        with absent.connected():
            await wait_until(lambda: len(absent.received) >= 1000)
            gateway.send(Publish(TOPIC, b"last", 1, packet_id=1))
            await wait_until(lambda: absent.received[-1] == b"last")
        await gateway.close()
    assert len(absent.received) < len(burst) // 2
    assert absent.received[:1000] == burst[:1000]


@pytest.mark.rule("broker-26")
async def test_a_stopped_reader_is_disconnected_with_a_warning_and_memory_stays_bounded(
    service: ServiceProcess, tmp_path: Path
) -> None:
    watching = service.add_user("watching", Role.VIEWER)
    gateway = await service.connect(service.claim(G))
    before = service.memory
    with mosquitto_sub(service.mqtt["mqtt"], watching, tmp_path / "sub") as process:
        process.send_signal(SIGSTOP)
        memory = [before]
        limit = before + 250  # its queue of 64 MiB, and the buffers of a commit and of the kernel

        async def publish_more() -> bool:
            await publish(gateway, [bytes(60_000)] * 100)
            memory.append(service.memory)
            return memory[-1] >= limit or _has_disconnected_subscriber(service)

        await eventually_async(publish_more, "the disconnection of the reader", patience=10 * TEST_TIMEOUT)
        assert max(memory) < limit
        process.send_signal(SIGCONT)
    await service.disconnect_all()
    code, errors = service.stop()
    assert code == 0
    (line,) = [line for line in errors.splitlines() if "is cut off" in line]
    assert "WARNING" in line
    assert "of user watching at 127.0.0.1" in line
    assert "limits.queue-bytes is 67108864" in line


def _has_disconnected_subscriber(service: ServiceProcess) -> bool:
    return "meshfleet_mqtt_cut_off_total 1.0" in service.call("GET", "/metrics")
