"""Live events: typed, in order, and across lost connections."""

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
from meshfleet.client.rest.live_events import SseParser, decode_event
from meshfleet.client.rest.transport import LineSplitter
from meshfleet.errors import InvalidRequest, NotLoggedIn, ServiceRefused
from meshfleet.errors.protocol import MalformedInput
from meshfleet.rest.live import STREAM_PATH, LiveParentChange
from meshfleet.rest.paths import REFRESH_PATH
from tests.client.rest.scripted_server import build_response, scripted_server
from tests.client.rest.tcp_relay import TcpRelay
from tests.eventually import eventually_async
from tests.service.http.running_service import PASSWORD
from tests.service.ingest.messages import A, heartbeat, link, temperature
from tests.service.jobs.job_environment import JobEnvironment
from tests.service.live.live_service import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from tests.service.live.live_service import LiveService

pytestmark = pytest.mark.anyio


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    await eventually_async(condition)


class EventReader:
    """Subscriber that receives events in the background. After `start` no event is missed."""

    def __init__(self, service: LiveService, events: AsyncGenerator[Event, None]) -> None:
        self._service = service
        self._events = events
        self._before = service.subscribers()
        self._next = asyncio.create_task(self._anext())

    async def start(self) -> None:
        """Wait until the service has added the subscriber, or the stream failed."""
        await wait_until(lambda: self.is_subscribed or self._next.done())

    async def read(self) -> Event:
        async with asyncio.timeout(PATIENCE):
            event = await self._next
        self._next = asyncio.create_task(self._anext())
        return event

    async def read_until(self, kind: type) -> None:
        """Read events until one has this body; other changes and tests may cause events before it."""
        for _ in range(50):
            if isinstance((await self.read()).data, kind):
                return
        raise AssertionError(f"received no {kind.__name__}")

    async def stop(self) -> None:
        self._next.cancel()
        await asyncio.wait([self._next])
        await self._events.aclose()

    async def _anext(self) -> Event:
        return await anext(self._events)

    @property
    def is_subscribed(self) -> bool:
        return not self._service.subscribers() <= self._before


def send_heartbeat(service: LiveService, device: str, status: int = 0) -> None:
    """Ingest a heartbeat of a device."""
    service.ingest(heartbeat(service.clock(), status, device=device, seq=status))


async def test_reports_are_typed(service: LiveService) -> None:
    device = service.new_mac()
    async with Fleet(service.url, token=service.key) as fleet:
        reader = EventReader(service, fleet.live("report", device.upper()))
        await reader.start()
        send_heartbeat(service, device, 3)
        send_heartbeat(service, service.new_mac())
        service.ingest(temperature(service.clock(), 21.5, device=device))
        service.ingest(link(service.clock(), -50, device=device))
        first, second, third = [await reader.read() for _ in range(3)]
        assert isinstance(first.data, LiveHeartbeat)
        assert (first.type, first.data.status, first.data.device) == ("report", 3, f"bmac-{device}")
        assert isinstance(second.data, LiveSample)
        assert (second.data.name, second.data.value) == ("temperature", 21.5)
        assert isinstance(third.data, LiveLink)
        assert third.data.rssi == -50
        await reader.stop()


async def test_changes_of_devices_and_gateways_are_typed(service: LiveService, fleet: Fleet) -> None:
    device, gateway = service.new_device(), service.new_mac()
    reader = EventReader(service, fleet.live(types=("device", "gateway")))
    await fleet.log_in()
    await reader.start()
    await fleet.devices.rename(device, "Zebra")
    await reader.read_until(Device)
    await fleet.devices.forget(device)
    await reader.read_until(ForgottenDevice)
    await fleet.gateways.claim(gateway)
    await reader.read_until(LiveGateway)
    await fleet.gateways.release(gateway)
    await reader.read_until(ReleasedGateway)
    await reader.stop()


@pytest.mark.rule("rest-149")
async def test_events_during_a_lost_connection_are_replayed_after_the_last_event(
    service: LiveService,
) -> None:
    device = service.new_mac()
    async with TcpRelay(service.url) as relay, Fleet(relay.url, token=service.key) as fleet:
        reader = EventReader(service, fleet.live(types="report", ids=device))
        await reader.start()
        send_heartbeat(service, device, 1)
        events = [await reader.read()]
        for status in (2, 4):
            await relay.disconnect()
            send_heartbeat(service, device, status)
            await relay.connect()
            events.append(await reader.read())
            send_heartbeat(service, device, status + 1)
            events.append(await reader.read())
        statuses = [each.data.status for each in events if isinstance(each.data, LiveHeartbeat)]
        assert statuses == [1, 2, 3, 4, 5]
        await reader.stop()


@pytest.mark.rule("rest-156")
async def test_a_subscriber_without_a_last_event_gets_a_resync_after_a_lost_connection(
    service: LiveService,
) -> None:
    async with TcpRelay(service.url) as relay, Fleet(relay.url, token=service.key) as fleet:
        reader = EventReader(service, fleet.live(types="report", ids=service.new_mac()))
        await reader.start()
        await wait_until(
            lambda: relay.forwarded_to_client > 0
        )  # the first comment has arrived, so the stream is open
        await relay.disconnect()
        await relay.connect()
        assert isinstance((await reader.read()).data, Resync)
        await reader.stop()


@pytest.mark.rule("rest-154")
async def test_a_stream_outlives_its_token(service: LiveService) -> None:
    device, username = service.new_mac(), service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        reader = EventReader(service, fleet.live(types="report", ids=device))
        await reader.start()
        send_heartbeat(service, device, 1)
        assert (await reader.read()).type == "report"
        first_session = fleet.session
        service.clock.move(seconds=1801)
        await wait_until(
            lambda: fleet.session != first_session
        )  # the service ends the stream, and the client reconnects
        send_heartbeat(service, device, 2)
        event = await reader.read()
        assert isinstance(event.data, LiveHeartbeat)
        assert event.data.status == 2
        await reader.stop()


async def test_a_stream_is_reopened_with_a_new_token_before_the_old_one_expires() -> None:
    """Use a token without a password, with which the client cannot log in again once it has expired."""
    expiring = "x.eyJpYXQiOjAsImV4cCI6M30.x"  # valid from second 0 to 3 of the Unix epoch
    renewed = build_response(200, {"status": "SUCCESS", "authToken": expiring, "sessionId": None})
    first, second = (
        _build_stream(_build_event("weather", {"number": number}, str(number))) for number in (1, 2)
    )
    async with (
        scripted_server(first, second, always={REFRESH_PATH: renewed}) as server,
        Fleet(server.url, token=expiring) as fleet,
        asyncio.timeout(PATIENCE),
        aclosing(fleet.live()) as events,
    ):
        assert [(await anext(events)).data for _ in range(2)] == [{"number": 1}, {"number": 2}]
    event_ids = [each.headers.get("last-event-id") for each in server.requests if each.path == STREAM_PATH]
    assert event_ids == [None, "1"]
    assert [each.path for each in server.requests].count(REFRESH_PATH) >= 2


async def test_watching_a_job_uses_its_events(service: LiveService) -> None:
    environment = JobEnvironment(service)
    job = environment.create_job(environment.firmware(), environment.devices(1))
    finished = _build_stream(_build_event("job", job | {"state": "COMPLETED"}))
    async with (
        scripted_server(build_response(200, job), always={STREAM_PATH: finished}) as server,
        Fleet(server.url, token=service.key) as fleet,
        asyncio.timeout(PATIENCE),
    ):
        # Polling would forever return a job in progress.
        states = [each.state async for each in fleet.jobs.watch(job["id"])]
    assert states == [JobState.IN_PROGRESS, JobState.COMPLETED]


async def test_a_stream_ends_with_a_login_that_cannot_be_renewed(service: LiveService) -> None:
    async with Fleet(service.url, user=service.new_user(), password=PASSWORD) as fleet:
        session = await fleet.log_in()
        async with Fleet(session=session) as other:
            # A device that no gateway reports: other tests use the service, too.
            reader = EventReader(service, other.live(types="report", ids=service.new_mac()))
            await reader.start()
            await fleet.log_out()
            with pytest.raises(NotLoggedIn):
                await reader.read()
            await reader.stop()


async def test_an_invalid_filter_is_reported_at_once(service: LiveService) -> None:
    async with Fleet(service.url, token=service.key) as fleet:
        with pytest.raises(InvalidRequest, match="Types"):
            await anext(fleet.live(types=["nonsense"]))  # type: ignore[list-item] # wrong on purpose


async def test_closing_a_stream_removes_its_subscriber(service: LiveService) -> None:
    device = service.new_mac()
    async with Fleet(service.url, token=service.key) as fleet:
        reader = EventReader(service, fleet.live(types="report", ids=device))
        await reader.start()
        await reader.stop()
        await wait_until(lambda: not reader.is_subscribed)
        async with aclosing(fleet.live()):
            pass  # never iterated over


def _build_event(kind: str, data: dict[str, Any], event_id: str = "1") -> bytes:
    return json.dumps(
        {"id": event_id, "type": kind, "time": "2026-01-01T00:00:00.000Z", "data": data}
    ).encode()


def _build_stream(event: bytes) -> bytes:
    """Build the beginning of an endless response."""
    head = b"HTTP/1.1 200 x\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    data = b"data: " + event + b"\n\n"
    return head + f"{len(data):x}\r\n".encode() + data + b"\r\n"


def test_a_parent_change_is_typed() -> None:
    time = "2026-11-15T10:07:20.585Z"
    data = {"device": "bmac-c0ffee0000a1", "parent": A, "previous": None, "gateway": A, "time": time}
    change = decode_event(_build_event("topology", data)).data
    assert change == LiveParentChange(
        device="bmac-c0ffee0000a1", parent=A, previous=None, gateway=A, time=time
    )


def test_unknown_events_of_a_newer_service_are_returned_as_dictionaries() -> None:
    assert decode_event(_build_event("weather", {"rain": True})).data == {"rain": True}
    assert decode_event(_build_event("report", {"kind": "smell"})).data == {"kind": "smell"}


def test_a_malformed_event_raises_a_wire_error() -> None:
    with pytest.raises(MalformedInput):
        decode_event(_build_event("resync", {}))
    with pytest.raises(MalformedInput):
        decode_event(b"{")


def test_events_are_parsed_from_chunks_of_any_size() -> None:
    stream = b": hello\n\nid: 1\nevent: x\ndata: {\ndata: }\n\n\n\ndata:{}\r\n\r\nretry: 3\n\n"
    for size in range(1, len(stream)):
        lines, parser = LineSplitter(b"\n"), SseParser()
        chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
        parsed = [
            parser.feed_line(line.removesuffix(b"\r")) for chunk in chunks for line in lines.feed(chunk)
        ]
        assert [each for each in parsed if each is not None] == [b"{\n}", b"{}"]


def test_lines_with_two_byte_ends_are_split_from_chunks_of_any_size() -> None:
    stream = b"a\r\nb\n\rc\r\n\r\nd"
    for size in range(1, len(stream)):
        lines = LineSplitter(b"\r\n")
        chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [line for chunk in chunks for line in lines.feed(chunk)] == [b"a", b"b\n\rc", b""]


def test_an_endless_line_is_refused() -> None:
    lines = LineSplitter(b"\n")
    assert list(lines.feed(b"x" * (4 << 20))) == []
    with pytest.raises(ServiceRefused):
        list(lines.feed(b"x"))
