"""`Mesh` for programs without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from meshfleet.client import check
from meshfleet.client.blocking import Mesh
from meshfleet.client.blocking.event_loop import EventLoopThread
from meshfleet.client.blocking.proxies import BlockingIterator
from meshfleet.client.mesh.mesh import Mesh as AsyncMesh
from meshfleet.errors.mqtt import BrokerUnreachable, ConnectionClosed
from meshfleet.testing import EmulatedGateway, emulated_gateway
from tests.servers import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator


@pytest.fixture(scope="module")
def gateway() -> Iterator[EmulatedGateway]:
    with emulated_gateway(devices=2, speed=60.0) as running:
        yield running


def test_requests_get_responses_and_reports_can_be_iterated_over(gateway: EmulatedGateway) -> None:
    with Mesh(gateway.broker) as mesh:
        assert str(mesh.apiversion(gateway.mac).version) == "2.4.0"
        assert check(mesh.read(gateway.mac, gateway.mac, "8000")).value
        for report in mesh.reports(gateway=gateway.mac):
            assert report.gateway == gateway.mac
            break
        assert (mesh.rejected, mesh.pending) == (0, 0)
    assert not [thread for thread in threading.enumerate() if thread.name == "Mesh"]


def test_an_unreachable_broker_leaves_no_thread() -> None:
    mesh = Mesh(f"mqtt://127.0.0.1:{free_port()}")
    with pytest.raises(BrokerUnreachable):
        mesh.__enter__()
    assert not [thread for thread in threading.enumerate() if thread.name == "Mesh"]


def test_a_session_can_be_read_again_as_soon_as_it_is_closed(gateway: EmulatedGateway) -> None:
    with Mesh(gateway.broker) as mesh:
        for _ in range(10):
            with closing(mesh.reports(session="again")) as reports:
                assert next(reports).gateway == gateway.mac
            with mesh.reports(session="again") as reports:
                assert next(reports).gateway == gateway.mac
            assert list(reports) == []
        mesh.end_session("again")


def test_an_iterator_can_be_used_by_one_thread_at_a_time() -> None:
    started, finished = threading.Event(), threading.Event()

    async def wait_forever() -> AsyncGenerator[int, None]:
        started.set()
        await asyncio.Event().wait()
        yield 1

    def expect_closed() -> None:
        with pytest.raises(ConnectionClosed, match="closed while a call was waiting"):
            next(items)
        finished.set()

    loop_thread = EventLoopThread("Mesh")
    loop_thread.start()
    items = BlockingIterator(wait_forever(), loop_thread)
    waiting_thread = threading.Thread(target=expect_closed)
    waiting_thread.start()
    assert started.wait(30)
    with pytest.raises(ValueError, match="another thread"):
        next(items)
    with pytest.raises(ValueError, match="another thread"):
        items.close()
    loop_thread.stop()
    waiting_thread.join(30)
    assert finished.is_set()
    assert list(items) == []


def test_methods_are_annotated_with_their_blocking_results() -> None:
    mesh = Mesh("mqtt://127.0.0.1")
    assert inspect.signature(mesh.reports).return_annotation == "BlockingIterator[Report]"
    assert mesh.reports.__annotations__["return"] == "BlockingIterator[Report]"
    assert [*inspect.signature(mesh.reports).parameters] == ["gateway", "device", "kinds", "session"]
    wrapped = inspect.signature(AsyncMesh.reports)  # unchanged
    assert wrapped.return_annotation == "AsyncGenerator[Report, None]"
