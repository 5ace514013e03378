"""The service is killed at any moment and started again: what it acknowledged is there."""

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
from meshfleet.rest import Role
from tests.databases import create_database
from tests.scenarios.service_process import ServiceProcess, loopback_options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.mqtt.broker.raw_client import RawClient
    from tests.service.embedded_broker.mqtt_accounts import Credentials

pytestmark = pytest.mark.anyio

G, D = "02005e000001", "02005e0000aa"
REPORTS = "mt/gateway/+/device/#"
KILLS = 4
_numbers = count(1)


@pytest.fixture
async def service(
    request: pytest.FixtureRequest, database_kind: str, tmp_path: Path
) -> AsyncIterator[ServiceProcess]:
    given = loopback_options("--mqtt")
    if database_kind == "postgresql":
        server: str = request.getfixturevalue("postgresql_server")
        given += ["--database", create_database(server, f"killed_{next(_numbers)}")]
    with ServiceProcess(tmp_path, *given) as running:
        yield running
        await running.disconnect_all()


def report(gateway: str = G, kind: str = "measurement/8100") -> str:
    return f"mt/gateway/{gateway}/device/{D}/{kind}"


async def publish(client: RawClient, topic: str, *payloads: bytes, retain: bool = False) -> None:
    """Publish at QoS 1; when this returns all of it is acknowledged."""
    for packet_id, payload in enumerate(payloads, 1):
        client.send(Publish(topic, payload, 1, retain, packet_id=packet_id))
        assert await client.expect(Puback) == Puback(packet_id)


@pytest.mark.rule("broker-2")
async def test_a_session_survives_a_kill_of_the_service(service: ServiceProcess) -> None:
    claimed, viewer = service.claim(G), service.add_user("eva", Role.VIEWER)
    operator = service.add_user("otto", Role.OPERATOR)
    ear = await service.connect_subscriber(viewer, REPORTS, clean=False)
    wanted = f"mt/gateway/{G}/request/{D}/#"  # about itself the service asks it too
    gateway = await service.connect_subscriber(claimed, wanted, clean=False)
    await publish(gateway, report(kind="property/8000"), b"kept", retain=True)
    await publish(gateway, report(kind="property/8001"), b"kept", b"", retain=True)
    for kept in (b"kept", b"kept", b""):
        assert (await ear.expect(Publish)).payload == kept
    gateway.abort()
    asking = await service.connect(operator)
    await publish(asking, f"mt/gateway/{G}/request/{D}/read/8000", b'{"id":"1"}')
    await publish(asking, f"mt/gateway/{G}/request/{D}/read/8000", b'{"id":"2","key":"00"}')  # now or never
    ear.send(Subscribe(2, ((f"mt/gateway/{G}/response/#", 0), ("mt/gateway/+/response/#", 1))))
    assert await ear.expect(Suback) == Suback(2, (0, 1))
    ear.send(Unsubscribe(3, ("mt/gateway/+/response/#",)))
    assert await ear.expect(Unsuback) == Unsuback(3)
    service.kill()
    service.start()

    gateway, answer = await service.try_connect(claimed, clean=False)
    assert answer == Connack(session_present=True)
    assert (await gateway.expect(Publish)).payload == b'{"id":"1"}'
    assert await gateway.receive_until_pong() == []
    await publish(gateway, report(), b"while it is away")
    await publish(gateway, f"mt/gateway/{G}/response/{D}/read/8000", b"not at QoS 0")
    ear, answer = await service.try_connect(viewer, clean=False)
    assert answer == Connack(session_present=True)
    owed = [await ear.expect(Publish) for _ in range(4)]
    assert [each.payload for each in owed] == [b"kept", b"kept", b"", b"while it is away"]
    assert [each.dup for each in owed[:3]] == [True] * 3
    assert await ear.receive_until_pong() == []
    await publish(gateway, f"mt/gateway/{G}/response/{D}/read/8000", b"now that it is there")
    live = await ear.expect(Publish)
    assert (live.payload, live.qos) == (b"now that it is there", 0)
    late = await service.connect(viewer, client_id="late")
    late.send(Subscribe(1, ((REPORTS, 1),)))
    come = [await late.receive(), await late.receive(), *await late.receive_until_pong()]
    assert [each.payload for each in come if isinstance(each, Publish)] == [b"kept"]


# --- Nothing that was acknowledged is lost ---


class ReportingGateway:
    """A gateway that publishes without a rest; what was not acknowledged it says again when it is back."""

    def __init__(self, claimed: Credentials) -> None:
        self._claimed = claimed
        self._unsure: list[bytes] = []
        self._numbers = count(1)
        self.acknowledged: set[bytes] = set()

    async def publish_until_closed(
        self, service: ServiceProcess, on_acknowledged: Callable[[], None]
    ) -> None:
        """Publish until the connection ends; `heard` is called for each acknowledgement."""
        client = await service.connect(self._claimed)
        unsure, self._unsure = self._unsure, []
        under_way: dict[int, bytes] = {}
        packet_id = 0
        while True:
            while len(under_way) < 20:
                packet_id += 1
                fresh = f"{self._claimed.user} {next(self._numbers)}".encode()
                under_way[packet_id] = unsure.pop(0) if unsure else fresh
                client.send(Publish(report(self._claimed.user), under_way[packet_id], 1, packet_id=packet_id))
            answer = await client.receive()
            if answer is None:
                self._unsure = [*under_way.values(), *unsure]
                return
            assert isinstance(answer, Puback)
            self.acknowledged.add(under_way.pop(answer.packet_id))
            on_acknowledged()


async def receive_messages(client: RawClient, come: list[bytes], enough: Callable[[], bool]) -> None:
    """Take messages, and acknowledge each, until there are enough or the connection ends."""
    while not enough():
        message = await client.receive()
        if message is None:
            return
        assert isinstance(message, Publish)
        come.append(message.payload)
        client.send(Puback(message.packet_id))


@pytest.mark.rule("broker-2")
async def test_nothing_that_was_acknowledged_is_lost_over_many_kills(service: ServiceProcess) -> None:
    """At each second kill the subscriber is there; at the others all of it waits in the database."""
    viewer = service.add_user("eva", Role.VIEWER)
    talkers = [ReportingGateway(service.claim(f"02005e00000{number}")) for number in range(3)]
    chance = random.Random(7)  # noqa: S311 # no secret
    come: list[bytes] = []
    (await service.connect_subscriber(viewer, REPORTS, clean=False)).abort()
    for number in range(KILLS):
        left = chance.randrange(20, 80)
        enough = asyncio.Event()

        def heard() -> None:
            nonlocal left
            left -= 1
            if not left:
                enough.set()  # noqa: B023 # nobody calls this after its round

        async with asyncio.TaskGroup() as tasks:
            if number % 2:
                ear, answer = await service.try_connect(viewer, clean=False)
                assert answer == Connack(session_present=True)
                tasks.create_task(receive_messages(ear, come, lambda: False))
            for talker in talkers:
                tasks.create_task(talker.publish_until_closed(service, heard))
            await enough.wait()
            await asyncio.to_thread(service.kill)
        service.start()
    promised = {payload for talker in talkers for payload in talker.acknowledged}
    ear, answer = await service.try_connect(viewer, clean=False)
    assert answer == Connack(session_present=True)
    await receive_messages(ear, come, lambda: promised <= set(come))
    assert promised - set(come) == set()
    assert len(promised) > 100


class Sender:
    """Publishes at QoS 2, in a session that outlives its connections."""

    def __init__(self, claimed: Credentials, count: int) -> None:
        self._claimed = claimed
        self._open: dict[int, Publish | Pubrel] = {}
        """What has to be said again after a lost connection."""
        self._left = [Publish(report(), b"%d" % n, 2, packet_id=n) for n in range(count, 0, -1)]

    @property
    def is_done(self) -> bool:
        return not self._left and not self._open

    async def send(self, service: ServiceProcess, on_acknowledged: Callable[[], None]) -> None:
        """Publish until all is complete, or the connection ends."""
        client = await service.connect(self._claimed, clean=False)
        for packet in self._open.values():
            client.send(_again(packet) if isinstance(packet, Publish) else packet)
        while not self.is_done:
            while self._left and len(self._open) < 10:
                message = self._left.pop()
                self._open[message.packet_id] = message
                client.send(message)
            match await client.receive():
                case Pubrec(packet_id):
                    self._open[packet_id] = Pubrel(packet_id)
                    client.send(Pubrel(packet_id))
                case Pubcomp(packet_id):
                    del self._open[packet_id]
                case None:
                    return
                case other:
                    raise AssertionError(other)
            on_acknowledged()


def _again(message: Publish) -> Publish:
    return Publish(message.topic, message.payload, message.qos, dup=True, packet_id=message.packet_id)


async def test_what_is_published_at_qos_2_comes_once_although_the_service_is_killed(
    service: ServiceProcess,
) -> None:
    sender, viewer = Sender(service.claim(G), 150), service.add_user("eva", Role.VIEWER)
    (await service.connect_subscriber(viewer, REPORTS, clean=False)).abort()
    chance = random.Random(11)  # noqa: S311 # no secret
    for _ in range(3):
        left = chance.randrange(20, 90)
        enough = asyncio.Event()

        def heard() -> None:
            nonlocal left
            left -= 1
            if not left:
                enough.set()  # noqa: B023 # nobody calls this after its round

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sender.send(service, heard))
            await enough.wait()
            await asyncio.to_thread(service.kill)
        service.start()
    await sender.send(service, lambda: None)
    assert sender.is_done
    ear = await service.connect(viewer, clean=False)
    come: list[bytes] = []
    await receive_messages(ear, come, lambda: len(come) >= 150)
    assert await ear.receive_until_pong() == []
    assert sorted(map(int, come)) == list(range(1, 151))
