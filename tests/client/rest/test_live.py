"""Live events: typed, one after the other, and through all that happens to a connection."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

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
from meshfleet.client.rest.events import Frames, read_event
from meshfleet.client.rest.lines import Lines
from meshfleet.errors import InvalidRequest, NotLoggedIn, ServiceRefused, WireError
from meshfleet.wire import rest
from tests.client.rest.cable import Cable
from tests.client.rest.scripted import answer, scripted
from tests.eventually import eventually_async
from tests.service.http.running import PASSWORD
from tests.service.ingest.messages import heartbeat, link, temperature
from tests.service.jobs.shop import Shop
from tests.service.live.stage import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from tests.service.live.stage import Stage

pytestmark = pytest.mark.anyio


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, which is so in a moment."""
    await eventually_async(is_so)


class Ear:
    """Somebody who listens; from `begin` on nothing is missed."""

    def __init__(self, service: Stage, events: AsyncGenerator[Event, None]) -> None:
        self._service = service
        self._events = events
        self._before = service.listeners()
        self._next = asyncio.create_task(self._anext())

    async def begin(self) -> None:
        """Wait until the service listens to us, or it failed."""
        await until(lambda: self.is_listening or self._next.done())

    async def hear(self) -> Event:
        async with asyncio.timeout(PATIENCE):
            event = await self._next
        self._next = asyncio.create_task(self._anext())
        return event

    async def hear_a(self, kind: type) -> None:
        """An event that tells this; before it others may come, of the same change or of other tests."""
        for _ in range(50):
            if isinstance((await self.hear()).data, kind):
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
        return not self._service.listeners() <= self._before


def beat(service: Stage, device: str, status: int = 0) -> None:
    """Let a device be heard."""
    service.take(heartbeat(service.clock(), status, device=device, seq=status))


async def test_reports_come_as_what_they_are(service: Stage) -> None:
    device = service.new_mac()
    async with Fleet(service.url, token=service.key) as fleet:
        ear = Ear(service, fleet.live("report", device.upper()))
        await ear.begin()
        beat(service, device, 3)
        beat(service, service.new_mac())
        service.take(temperature(service.clock(), 21.5, device=device))
        service.take(link(service.clock(), -50, device=device))
        first, second, third = [await ear.hear() for _ in range(3)]
        assert isinstance(first.data, LiveHeartbeat)
        assert (first.type, first.data.status, first.data.device) == ("report", 3, f"bmac-{device}")
        assert isinstance(second.data, LiveSample)
        assert (second.data.name, second.data.value) == ("temperature", 21.5)
        assert isinstance(third.data, LiveLink)
        assert third.data.rssi == -50
        await ear.end()


async def test_changes_of_devices_and_gateways_come_as_what_they_are(service: Stage, fleet: Fleet) -> None:
    device, gateway = service.new_device(), service.new_mac()
    ear = Ear(service, fleet.live(types=("device", "gateway")))
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
    service: Stage,
) -> None:
    device = service.new_mac()
    async with Cable(service.url) as cable, Fleet(cable.url, token=service.key) as fleet:
        ear = Ear(service, fleet.live(types="report", ids=device))
        await ear.begin()
        beat(service, device, 1)
        heard = [await ear.hear()]
        for status in (2, 4):
            await cable.unplug()
            beat(service, device, status)
            await cable.plug()
            heard.append(await ear.hear())
            beat(service, device, status + 1)
            heard.append(await ear.hear())
        told = [each.data.status for each in heard if isinstance(each.data, LiveHeartbeat)]
        assert told == [1, 2, 3, 4, 5]
        await ear.end()


@pytest.mark.rule("rest-156")
async def test_who_heard_nothing_before_the_loss_is_told_that_something_may_be_missed(service: Stage) -> None:
    async with Cable(service.url) as cable, Fleet(cable.url, token=service.key) as fleet:
        ear = Ear(service, fleet.live(types="report", ids=service.new_mac()))
        await ear.begin()
        await until(lambda: cable.passed_back > 0)  # the first comment came, and with it we are in
        await cable.unplug()
        await cable.plug()
        assert isinstance((await ear.hear()).data, Resync)
        await ear.end()


@pytest.mark.rule("rest-154")
async def test_a_stream_outlives_its_token(service: Stage) -> None:
    device, username = service.new_mac(), service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        ear = Ear(service, fleet.live(types="report", ids=device))
        await ear.begin()
        beat(service, device, 1)
        assert (await ear.hear()).type == "report"
        before = fleet.session
        service.clock.move(seconds=1801)
        await until(lambda: fleet.session != before)  # the service ends the stream, and we come back
        beat(service, device, 2)
        again = await ear.hear()
        assert isinstance(again.data, LiveHeartbeat)
        assert again.data.status == 2
        await ear.end()


async def test_a_stream_moves_to_a_new_token_before_the_old_one_ends() -> None:
    """Without a password there is no way back once it has ended."""
    short = "x.eyJpYXQiOjAsImV4cCI6M30.x"  # from 0 to 3
    traded = answer(200, {"status": "SUCCESS", "authToken": short, "sessionId": None})
    first, second = (_stream(_event("weather", {"number": number}, str(number))) for number in (1, 2))
    async with (
        scripted(first, second, always={rest.REFRESH: traded}) as server,
        Fleet(server.url, token=short) as fleet,
        asyncio.timeout(PATIENCE),
        aclosing(fleet.live()) as events,
    ):
        assert [(await anext(events)).data for _ in range(2)] == [{"number": 1}, {"number": 2}]
    asked = [each.headers.get("last-event-id") for each in server.asked if each.path == rest.STREAM]
    assert asked == [None, "1"]
    assert [each.path for each in server.asked].count(rest.REFRESH) >= 2


async def test_a_job_that_events_tell_of_is_watched_by_them(service: Stage) -> None:
    shop = Shop(service)
    job = shop.make(shop.firmware(), shop.devices(1))
    over = _stream(_event("job", job | {"state": "COMPLETED"}))
    async with (
        scripted(answer(200, job), always={rest.STREAM: over}) as server,
        Fleet(server.url, token=service.key) as fleet,
        asyncio.timeout(PATIENCE),
    ):
        # Who asks is told for ever that it goes on.
        seen = [each.state async for each in fleet.jobs.watch(job["id"])]
    assert seen == [JobState.IN_PROGRESS, JobState.COMPLETED]


async def test_a_stream_ends_with_a_login_that_cannot_be_replaced(service: Stage) -> None:
    async with Fleet(service.url, user=service.new_user(), password=PASSWORD) as fleet:
        kept = await fleet.log_in()
        async with Fleet(session=kept) as other:
            # Of a device that no gateway reports: other tests use the service, too.
            ear = Ear(service, other.live(types="report", ids=service.new_mac()))
            await ear.begin()
            await fleet.log_out()
            with pytest.raises(NotLoggedIn):
                await ear.hear()
            await ear.end()


async def test_a_wrong_filter_is_told_at_once(service: Stage) -> None:
    async with Fleet(service.url, token=service.key) as fleet:
        with pytest.raises(InvalidRequest, match="Types"):
            await anext(fleet.live(types=["nonsense"]))  # type: ignore[list-item] # that is the test


async def test_who_stops_listening_is_gone(service: Stage) -> None:
    device = service.new_mac()
    async with Fleet(service.url, token=service.key) as fleet:
        ear = Ear(service, fleet.live(types="report", ids=device))
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
    assert read_event(_event("weather", {"rain": True})).data == {"rain": True}
    assert read_event(_event("report", {"kind": "smell"})).data == {"kind": "smell"}


def test_an_event_of_another_shape_is_an_error() -> None:
    with pytest.raises(WireError):
        read_event(_event("resync", {}))
    with pytest.raises(WireError):
        read_event(b"{")


def test_events_are_put_together_from_any_pieces() -> None:
    stream = b": hello\n\nid: 1\nevent: x\ndata: {\ndata: }\n\n\n\ndata:{}\r\n\r\nretry: 3\n\n"
    for size in range(1, len(stream)):
        lines, frames = Lines(b"\n"), Frames()
        pieces = [stream[place : place + size] for place in range(0, len(stream), size)]
        found = [frames.add(line.removesuffix(b"\r")) for piece in pieces for line in lines.feed(piece)]
        assert [each for each in found if each is not None] == [b"{\n}", b"{}"]


def test_lines_with_longer_ends_are_cut_from_any_pieces() -> None:
    stream = b"a\r\nb\n\rc\r\n\r\nd"
    for size in range(1, len(stream)):
        lines = Lines(b"\r\n")
        pieces = [stream[place : place + size] for place in range(0, len(stream), size)]
        assert [line for piece in pieces for line in lines.feed(piece)] == [b"a", b"b\n\rc", b""]


def test_a_line_without_end_is_refused() -> None:
    lines = Lines(b"\n")
    assert list(lines.feed(b"x" * (4 << 20))) == []
    with pytest.raises(ServiceRefused):
        list(lines.feed(b"x"))
