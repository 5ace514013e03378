"""Kills of the service at any moment: everything that it acknowledged exists after a restart."""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import (
    Connack,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from meshfleet.rest.accounts import Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.mqtt.broker.raw_client import RawClient
    from tests.scenarios.service_process import ServiceProcess
    from tests.service.embedded_broker.mqtt_accounts import Credentials

pytestmark = pytest.mark.anyio

G, D = "02005e000001", "02005e0000aa"
REPORTS = "mt/gateway/+/device/#"
KILLS = 4


@pytest.fixture
async def service(service: ServiceProcess) -> AsyncIterator[ServiceProcess]:
    yield service
    await service.disconnect_all()


def report(gateway: str = G, kind: str = "measurement/8100") -> str:
    return f"mt/gateway/{gateway}/device/{D}/{kind}"


async def publish(client: RawClient, topic: str, *payloads: bytes, retain: bool = False) -> None:
    """Publish at QoS 1, and wait until all messages are acknowledged."""
    for packet_id, payload in enumerate(payloads, 1):
        client.send(Publish(topic, payload, 1, retain, packet_id=packet_id))
        assert await client.expect(Puback) == Puback(packet_id)


@pytest.mark.rule("broker-2")
async def test_a_session_survives_a_kill_of_the_service(service: ServiceProcess) -> None:
    claimed, viewer = service.claim(G), service.add_user("eva", Role.VIEWER)
    operator = service.add_user("otto", Role.OPERATOR)
    subscriber = await service.connect_subscriber(viewer, REPORTS, clean=False)
    request_filter = f"mt/gateway/{G}/request/{D}/#"  # the service itself sends requests to the gateway, too
    gateway = await service.connect_subscriber(claimed, request_filter, clean=False)
    await publish(gateway, report(kind="property/8000"), b"kept", retain=True)
    await publish(gateway, report(kind="property/8001"), b"kept", b"", retain=True)
    for payload in (b"kept", b"kept", b""):
        assert (await subscriber.expect(Publish)).payload == payload
    gateway.abort()
    requester = await service.connect(operator)
    await publish(requester, f"mt/gateway/{G}/request/{D}/read/8000", b'{"id":"1"}')
    await publish(
        requester, f"mt/gateway/{G}/request/{D}/read/8000", b'{"id":"2","key":"00"}'
    )  # requests with a key are never queued
    subscriber.send(Subscribe(2, ((f"mt/gateway/{G}/response/#", 0), ("mt/gateway/+/response/#", 1))))
    assert await subscriber.expect(Suback) == Suback(2, (0, 1))
    subscriber.send(Unsubscribe(3, ("mt/gateway/+/response/#",)))
    assert await subscriber.expect(Unsuback) == Unsuback(3)
    service.kill()
    service.start()

    gateway, connack = await service.try_connect(claimed, clean=False)
    assert connack == Connack(session_present=True)
    assert (await gateway.expect(Publish)).payload == b'{"id":"1"}'
    assert await gateway.receive_until_pong() == []
    await publish(gateway, report(), b"while it is away")
    await publish(gateway, f"mt/gateway/{G}/response/{D}/read/8000", b"not at QoS 0")
    subscriber, connack = await service.try_connect(viewer, clean=False)
    assert connack == Connack(session_present=True)
    queued = [await subscriber.expect(Publish) for _ in range(4)]
    assert [each.payload for each in queued] == [b"kept", b"kept", b"", b"while it is away"]
    assert [each.dup for each in queued[:3]] == [True] * 3
    assert await subscriber.receive_until_pong() == []
    await publish(gateway, f"mt/gateway/{G}/response/{D}/read/8000", b"now that it is there")
    live = await subscriber.expect(Publish)
    assert (live.payload, live.qos) == (b"now that it is there", 0)
    late_subscriber = await service.connect(viewer, client_id="late")
    late_subscriber.send(Subscribe(1, ((REPORTS, 1),)))
    packets = [
        await late_subscriber.receive(),
        await late_subscriber.receive(),
        *await late_subscriber.receive_until_pong(),
    ]
    assert [each.payload for each in packets if isinstance(each, Publish)] == [b"kept"]


# --- Acknowledged messages are not lost ---


class ReportingGateway:
    """Gateway that publishes continuously, and sends unacknowledged messages again after a reconnect."""

    def __init__(self, claimed: Credentials) -> None:
        self.claimed = claimed
        self._unacknowledged: list[bytes] = []
        self._numbers = count(1)
        self.acknowledged: set[bytes] = set()

    async def publish_until_closed(self, client: RawClient, on_acknowledged: Callable[[], None]) -> None:
        """Publish until the connection ends. `on_acknowledged` is called for each acknowledgment."""
        repeated, self._unacknowledged = self._unacknowledged, []
        in_flight: dict[int, bytes] = {}
        packet_id = 0
        while True:
            while len(in_flight) < 20:
                packet_id += 1
                new = f"{self.claimed.user} {next(self._numbers)}".encode()
                in_flight[packet_id] = repeated.pop(0) if repeated else new
                client.send(Publish(report(self.claimed.user), in_flight[packet_id], 1, packet_id=packet_id))
            packet = await client.receive()
            if packet is None:
                self._unacknowledged = [*in_flight.values(), *repeated]
                return
            assert isinstance(packet, Puback)
            self.acknowledged.add(in_flight.pop(packet.packet_id))
            on_acknowledged()


async def receive_messages(client: RawClient, received: list[bytes], is_done: Callable[[], bool]) -> None:
    """Receive and acknowledge messages until done, or the connection ends."""
    while not is_done():
        message = await client.receive()
        if message is None:
            return
        assert isinstance(message, Publish)
        received.append(message.payload)
        client.send(Puback(message.packet_id))


@pytest.mark.rule("broker-2")
async def test_no_acknowledged_message_is_lost_over_many_kills(service: ServiceProcess) -> None:
    """Connect the subscriber before every second kill; otherwise all messages are queued in the database."""
    viewer = service.add_user("eva", Role.VIEWER)
    gateways = [ReportingGateway(service.claim(f"02005e00000{number}")) for number in range(3)]
    rng = random.Random(7)  # noqa: S311 # not for secrets
    received: list[bytes] = []
    (await service.connect_subscriber(viewer, REPORTS, clean=False)).abort()
    for number in range(KILLS):
        remaining = rng.randrange(20, 80)
        is_enough = asyncio.Event()

        def count_down() -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                is_enough.set()  # noqa: B023 # only called during its round

        async with asyncio.TaskGroup() as tasks:
            if number % 2:
                subscriber, connack = await service.try_connect(viewer, clean=False)
                assert connack == Connack(session_present=True)
                tasks.create_task(receive_messages(subscriber, received, lambda: False))
            # All connect before one publishes: the acknowledgments of some are enough for the kill.
            clients = [await service.connect(gateway.claimed) for gateway in gateways]
            for gateway, client in zip(gateways, clients, strict=True):
                tasks.create_task(gateway.publish_until_closed(client, count_down))
            await is_enough.wait()
            await asyncio.to_thread(service.kill)
        service.start()
    acknowledged = {payload for gateway in gateways for payload in gateway.acknowledged}
    subscriber, connack = await service.try_connect(viewer, clean=False)
    assert connack == Connack(session_present=True)
    await receive_messages(subscriber, received, lambda: acknowledged <= set(received))
    assert acknowledged - set(received) == set()
    assert len(acknowledged) > 100


class Sender:
    """Gateway that publishes at QoS 2, in a session that outlives its connections."""

    def __init__(self, claimed: Credentials, count: int) -> None:
        self._claimed = claimed
        self._in_flight: dict[int, Publish | Pubrel] = {}
        """Packets to send again after a lost connection."""
        self._remaining = [Publish(report(), b"%d" % n, 2, packet_id=n) for n in range(count, 0, -1)]

    @property
    def is_done(self) -> bool:
        return not self._remaining and not self._in_flight

    async def send(self, service: ServiceProcess, on_acknowledged: Callable[[], None]) -> None:
        """Publish until all messages are complete, or the connection ends."""
        client = await service.connect(self._claimed, clean=False)
        for packet in self._in_flight.values():
            client.send(_build_duplicate(packet) if isinstance(packet, Publish) else packet)
        while not self.is_done:
            while self._remaining and len(self._in_flight) < 10:
                message = self._remaining.pop()
                self._in_flight[message.packet_id] = message
                client.send(message)
            match await client.receive():
                case Pubrec(packet_id):
                    self._in_flight[packet_id] = Pubrel(packet_id)
                    client.send(Pubrel(packet_id))
                case Pubcomp(packet_id):
                    del self._in_flight[packet_id]
                case None:
                    return
                case other:
                    raise AssertionError(other)
            on_acknowledged()


def _build_duplicate(message: Publish) -> Publish:
    return Publish(message.topic, message.payload, message.qos, dup=True, packet_id=message.packet_id)


async def test_qos_2_messages_arrive_exactly_once_although_the_service_is_killed(
    service: ServiceProcess,
) -> None:
    sender, viewer = Sender(service.claim(G), 150), service.add_user("eva", Role.VIEWER)
    (await service.connect_subscriber(viewer, REPORTS, clean=False)).abort()
    rng = random.Random(11)  # noqa: S311 # not for secrets
    for _ in range(3):
        remaining = rng.randrange(20, 90)
        is_enough = asyncio.Event()

        def count_down() -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                is_enough.set()  # noqa: B023 # only called during its round

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sender.send(service, count_down))
            await is_enough.wait()
            await asyncio.to_thread(service.kill)
        service.start()
    await sender.send(service, lambda: None)
    assert sender.is_done
    subscriber = await service.connect(viewer, clean=False)
    received: list[bytes] = []
    await receive_messages(subscriber, received, lambda: len(received) >= 150)
    assert await subscriber.receive_until_pong() == []
    assert sorted(map(int, received)) == list(range(1, 151))
