"""Live events: typed, one after the other, and through all that happens to a connection."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet import rest
from meshfleet.client import (
    Device,
    Event,
    Fleet,
    ForgottenDevice,
    JobState,
    LiveGateway,
    LiveHeartbeat,
    LiveLink,
    LiveSample,
    ReleasedGateway,
    Resync,
)
from meshfleet.client.rest.live_events import SseParser, decode_event
from meshfleet.client.rest.transport import LineSplitter
from meshfleet.errors import InvalidRequest, NotLoggedIn, ServiceRefused
from meshfleet.errors.protocol import WireError
from tests.client.rest.scripted_server import build_response, scripted_server
from tests.client.rest.tcp_relay import TcpRelay
from tests.eventually import eventually_async
from tests.service.http.running_service import PASSWORD
from tests.service.ingest.messages import heartbeat, link, temperature
from tests.service.jobs.job_environment import JobEnvironment
from tests.service.live.live_service import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from tests.service.live.live_service import LiveService

pytestmark = pytest.mark.anyio


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, which is so in a moment."""
    await eventually_async(is_so)


class EventReader:
    """Somebody who listens; from `begin` on nothing is missed."""

    def __init__(self, service: LiveService, events: AsyncGenerator[Event, None]) -> None:
        self._service = service
        self._events = events
        self._before = service.subscribers()
        self._next = asyncio.create_task(self._anext())

    async def begin(self) -> None:
        """Wait until the service listens to us, or it failed."""
        await until(lambda: self.is_listening or self._next.done())

    async def read(self) -> Event:
        async with asyncio.timeout(PATIENCE):
            event = await self._next
        self._next = asyncio.create_task(self._anext())
        return event

    async def hear_a(self, kind: type) -> None:
        """An event that tells this; before it others may come, of the same change or of other tests."""
        for _ in range(50):
            if isinstance((await self.read()).data, kind):
                return
        raise AssertionError(f"nobody tells of a {kind.__name__}")

    async def end(self) -> None:
        self._next.cancel()
        await asyncio.wait([self._next])
        await self._events.aclose()

    async def _anext(self) -> Event:
        return await anext(self._events)

    @property
    def is_listening(self) -> bool:
        return not self._service.subscribers() <= self._before


def beat(service: LiveService, device: str, status: int = 0) -> None:
    """Let a device be heard."""
    service.ingest(heartbeat(service.clock(), status, device=device, seq=status))


async def test_reports_come_as_what_they_are(service: LiveService) -> None:
    device = service.new_mac()
    async with Fleet(service.url, token=service.key) as fleet:
        ear = EventReader(service, fleet.live("report", device.upper()))
        await ear.begin()
        beat(service, device, 3)
        beat(service, service.new_mac())
        service.ingest(temperature(service.clock(), 21.5, device=device))
        service.ingest(link(service.clock(), -50, device=device))
        first, second, third = [await ear.read() for _ in range(3)]
        assert isinstance(first.data, LiveHeartbeat)
        assert (first.type, first.data.status, first.data.device) == ("report", 3, f"bmac-{device}")
        assert isinstance(second.data, LiveSample)
        assert (second.data.name, second.data.value) == ("temperature", 21.5)
        assert isinstance(third.data, LiveLink)
        assert third.data.rssi == -50
        await ear.end()


async def test_changes_of_devices_and_gateways_come_as_what_they_are(
    service: LiveService, fleet: Fleet
) -> None:
    device, gateway = service.new_device(), service.new_mac()
    ear = EventReader(service, fleet.live(types=("device", "gateway")))
    await fleet.log_in()
    await ear.begin()
    await fleet.devices.rename(device, "Zebra")
    await ear.hear_a(Device)
    await fleet.devices.forget(device)
    await ear.hear_a(ForgottenDevice)
    await fleet.gateways.claim(gateway)
    await ear.hear_a(LiveGateway)
    await fleet.gateways.release(gateway)
    await ear.hear_a(ReleasedGateway)
    await ear.end()


@pytest.mark.rule("rest-149")
async def test_what_happened_while_the_connection_was_lost_comes_behind_the_last_event(
    service: LiveService,
) -> None:
    device = service.new_mac()
    async with TcpRelay(service.url) as cable, Fleet(cable.url, token=service.key) as fleet:
        ear = EventReader(service, fleet.live(types="report", ids=device))
        await ear.begin()
        beat(service, device, 1)
        heard = [await ear.read()]
        for status in (2, 4):
            await cable.disconnect()
            beat(service, device, status)
            await cable.connect()
            heard.append(await ear.read())
            beat(service, device, status + 1)
            heard.append(await ear.read())
        told = [each.data.status for each in heard if isinstance(each.data, LiveHeartbeat)]
        assert told == [1, 2, 3, 4, 5]
        await ear.end()


@pytest.mark.rule("rest-156")
async def test_who_heard_nothing_before_the_loss_is_told_that_something_may_be_missed(
    service: LiveService,
) -> None:
    async with TcpRelay(service.url) as cable, Fleet(cable.url, token=service.key) as fleet:
        ear = EventReader(service, fleet.live(types="report", ids=service.new_mac()))
        await ear.begin()
        await until(lambda: cable.passed_back > 0)  # the first comment came, and with it we are in
        await cable.disconnect()
        await cable.connect()
        assert isinstance((await ear.read()).data, Resync)
        await ear.end()


@pytest.mark.rule("rest-154")
async def test_a_stream_outlives_its_token(service: LiveService) -> None:
    device, username = service.new_mac(), service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        ear = EventReader(service, fleet.live(types="report", ids=device))
        await ear.begin()
        beat(service, device, 1)
        assert (await ear.read()).type == "report"
        before = fleet.session
        service.clock.move(seconds=1801)
        await until(lambda: fleet.session != before)  # the service ends the stream, and we come back
        beat(service, device, 2)
        again = await ear.read()
        assert isinstance(again.data, LiveHeartbeat)
        assert again.data.status == 2
        await ear.end()


async def test_a_stream_moves_to_a_new_token_before_the_old_one_ends() -> None:
    """Without a password there is no way back once it has ended."""
    short = "x.eyJpYXQiOjAsImV4cCI6M30.x"  # from 0 to 3
    traded = build_response(200, {"status": "SUCCESS", "authToken": short, "sessionId": None})
    first, second = (_stream(_event("weather", {"number": number}, str(number))) for number in (1, 2))
    async with (
        scripted_server(first, second, always={rest.REFRESH_PATH: traded}) as server,
        Fleet(server.url, token=short) as fleet,
        asyncio.timeout(PATIENCE),
        aclosing(fleet.live()) as events,
    ):
        assert [(await anext(events)).data for _ in range(2)] == [{"number": 1}, {"number": 2}]
    asked = [each.headers.get("last-event-id") for each in server.requests if each.path == rest.STREAM_PATH]
    assert asked == [None, "1"]
    assert [each.path for each in server.requests].count(rest.REFRESH_PATH) >= 2


async def test_a_job_that_events_tell_of_is_watched_by_them(service: LiveService) -> None:
    shop = JobEnvironment(service)
    job = shop.create_job(shop.firmware(), shop.devices(1))
    over = _stream(_event("job", job | {"state": "COMPLETED"}))
    async with (
        scripted_server(build_response(200, job), always={rest.STREAM_PATH: over}) as server,
        Fleet(server.url, token=service.key) as fleet,
        asyncio.timeout(PATIENCE),
    ):
        # Who asks is told for ever that it goes on.
        seen = [each.state async for each in fleet.jobs.watch(job["id"])]
    assert seen == [JobState.IN_PROGRESS, JobState.COMPLETED]


async def test_a_stream_ends_with_a_login_that_cannot_be_replaced(service: LiveService) -> None:
    async with Fleet(service.url, user=service.new_user(), password=PASSWORD) as fleet:
        kept = await fleet.log_in()
        async with Fleet(session=kept) as other:
            # Of a device that no gateway reports: other tests use the service, too.
            ear = EventReader(service, other.live(types="report", ids=service.new_mac()))
            await ear.begin()
            await fleet.log_out()
            with pytest.raises(NotLoggedIn):
                await ear.read()
            await ear.end()


async def test_a_wrong_filter_is_told_at_once(service: LiveService) -> None:
    async with Fleet(service.url, token=service.key) as fleet:
        with pytest.raises(InvalidRequest, match="Types"):
            await anext(fleet.live(types=["nonsense"]))  # type: ignore[list-item] # that is the test


async def test_who_stops_listening_is_gone(service: LiveService) -> None:
    device = service.new_mac()
    async with Fleet(service.url, token=service.key) as fleet:
        ear = EventReader(service, fleet.live(types="report", ids=device))
        await ear.begin()
        await ear.end()
        await until(lambda: not ear.is_listening)
        async with aclosing(fleet.live()):
            pass  # one that never began


def _event(kind: str, data: dict[str, Any], name: str = "1") -> bytes:
    return json.dumps({"id": name, "type": kind, "time": "2026-01-01T00:00:00.000Z", "data": data}).encode()


def _stream(event: bytes) -> bytes:
    """The beginning of an answer that does not end."""
    head = b"HTTP/1.1 200 x\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    data = b"data: " + event + b"\n\n"
    return head + f"{len(data):x}\r\n".encode() + data + b"\r\n"


def test_what_a_service_of_the_future_tells_is_passed_on_as_it_is() -> None:
    assert decode_event(_event("weather", {"rain": True})).data == {"rain": True}
    assert decode_event(_event("report", {"kind": "smell"})).data == {"kind": "smell"}


def test_an_event_of_another_shape_is_an_error() -> None:
    with pytest.raises(WireError):
        decode_event(_event("resync", {}))
    with pytest.raises(WireError):
        decode_event(b"{")


def test_events_are_put_together_from_any_pieces() -> None:
    stream = b": hello\n\nid: 1\nevent: x\ndata: {\ndata: }\n\n\n\ndata:{}\r\n\r\nretry: 3\n\n"
    for size in range(1, len(stream)):
        lines, frames = LineSplitter(b"\n"), SseParser()
        pieces = [stream[place : place + size] for place in range(0, len(stream), size)]
        found = [frames.feed_line(line.removesuffix(b"\r")) for piece in pieces for line in lines.feed(piece)]
        assert [each for each in found if each is not None] == [b"{\n}", b"{}"]


def test_lines_with_longer_ends_are_cut_from_any_pieces() -> None:
    stream = b"a\r\nb\n\rc\r\n\r\nd"
    for size in range(1, len(stream)):
        lines = LineSplitter(b"\r\n")
        pieces = [stream[place : place + size] for place in range(0, len(stream), size)]
        assert [line for piece in pieces for line in lines.feed(piece)] == [b"a", b"b\n\rc", b""]


def test_a_line_without_end_is_refused() -> None:
    lines = LineSplitter(b"\n")
    assert list(lines.feed(b"x" * (4 << 20))) == []
    with pytest.raises(ServiceRefused):
        list(lines.feed(b"x"))
