"""`Fleet` for programs without an event loop."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from meshfleet.client import Role
from meshfleet.client.blocking import Fleet
from meshfleet.errors import NotFound, ServiceUnreachable
from meshfleet.errors.mqtt import ConnectionClosed
from tests.servers import free_port
from tests.service.http.running_service import PASSWORD
from tests.service.ingest.messages import heartbeat, temperature

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService


def fleet_threads() -> set[threading.Thread]:
    """Return the event loop threads of open fleets."""
    return {thread for thread in threading.enumerate() if thread.name == "Fleet"}


def test_methods_wait_and_lists_are_iterated(service: LiveService) -> None:
    device = service.new_device()
    with Fleet(service.url, user=service.new_user(Role.OPERATOR), password=PASSWORD) as fleet:
        assert fleet.devices.rename(device, name="Zebra").friendly_name == "Zebra"
        assert [each.id for each in fleet.devices.list(ids=device)] == [device]
        assert fleet.devices.summary(ids=[device]).total == 1
        with pytest.raises(NotFound):
            fleet.devices.show(service.new_mac())
        assert fleet.me().role is Role.OPERATOR
        fleet.log_out()
        assert fleet.session is None
        session = fleet.log_in()
    with Fleet(session=session) as fleet:
        assert fleet.me().username == session.user
    assert not fleet_threads()


def test_a_closed_fleet_leaves_no_thread(service: LiveService) -> None:
    for _ in range(2):
        service.new_device()
    fleet = Fleet(service.url, token=service.key)
    with fleet:
        assert len(fleet_threads()) == 1
        devices = fleet.devices.list()
        assert next(devices).id
    assert not fleet_threads()
    with pytest.raises(ConnectionClosed, match="not open"):
        fleet.me()
    with pytest.raises(ConnectionClosed, match="not open"):
        next(devices)
    with pytest.raises(StopIteration):
        next(devices)
    del devices
    gc.collect()
    assert not fleet_threads()


def test_a_fleet_can_be_opened_only_once_at_a_time(service: LiveService) -> None:
    with Fleet(service.url, token=service.key) as fleet:
        with pytest.raises(ConnectionClosed, match="already"):
            fleet.__enter__()
        assert fleet.me().kind == "api-key"
    assert not fleet_threads()


def test_a_fleet_can_be_used_only_inside_its_block() -> None:
    fleet = Fleet("http://127.0.0.1", token="mfk_x")  # noqa: S106 # not a real key
    with pytest.raises(ConnectionClosed, match="with"):
        fleet.me()
    with pytest.raises(ConnectionClosed, match="with"):
        next(fleet.labels.list())


def test_an_error_inside_the_block_closes_the_fleet(service: LiveService) -> None:
    with pytest.raises(NotFound), Fleet(service.url, token=service.key) as fleet:
        fleet.devices.show(service.new_mac())
    assert not fleet_threads()


def test_many_threads_share_one_fleet(service: LiveService) -> None:
    devices = [service.new_device() for _ in range(40)]
    with (
        Fleet(service.url, user=service.new_user(), password=PASSWORD) as fleet,
        ThreadPoolExecutor(8) as threads,
    ):
        assert [each.id for each in threads.map(fleet.devices.show, devices)] == devices
        lists = threads.map(lambda device: [found.id for found in fleet.devices.list(ids=device)], devices)
        assert list(lists) == [[each] for each in devices]
        assert len(fleet_threads()) == 1


def test_leaving_a_list_early_releases_its_connection(service: LiveService) -> None:
    device = service.new_mac()
    at = service.clock()
    service.ingest_and_flush(
        *(temperature(at + offset, device=device, seq=offset % 256) for offset in range(300))
    )
    with Fleet(service.url, token=service.key) as fleet:
        for _ in fleet.samples.csv(device):
            break
        for _ in fleet.samples.list(device):
            break
        assert len(list(fleet.samples.csv(device))) == 301


def test_live_events_can_be_iterated_over(service: LiveService) -> None:
    device = service.new_mac()
    received: list[str] = []
    with Fleet(service.url, token=service.key) as fleet:
        events = fleet.live(types="report", ids=device)
        listener = threading.Thread(target=lambda: received.append(next(events).type))
        listener.start()
        for number in range(3000):
            service.ingest(heartbeat(service.clock(), device=device, seq=number % 256))
            listener.join(0.01)
            if received:
                break
        assert received == ["report"]
        events.close()
        listener.join()


def test_closing_a_fleet_raises_link_closed_in_waiting_calls(service: LiveService) -> None:
    errors: list[BaseException] = []
    fleet = Fleet(service.url, token=service.key)

    def receive_events() -> None:
        try:
            for _ in fleet.live(types="report", ids=service.new_mac()):
                pass
        except ConnectionClosed as exc:
            errors.append(exc)

    with fleet:
        before = service.subscribers()
        listener = threading.Thread(target=receive_events)
        listener.start()
        while service.subscribers() <= before:
            listener.join(0.01)
            assert listener.is_alive()
    listener.join(30)
    assert not listener.is_alive()
    assert len(errors) == 1


def test_an_address_without_a_server_is_unreachable() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Fleet(url, token="mfk_x") as fleet, pytest.raises(ServiceUnreachable):  # noqa: S106 # not a real key
        fleet.me()


PROGRAM = """
import sys
from meshfleet.client import Role
from meshfleet.client.blocking import Fleet
with Fleet(sys.argv[1], token=sys.argv[2]) as fleet:
    print("listening", flush=True)
    for event in fleet.live():
        print(event, flush=True)
"""


def test_ctrl_c_ends_a_waiting_program(service: LiveService) -> None:
    before = service.subscribers()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, service.url, service.key],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "listening\n"
        for _ in range(3000):
            if service.subscribers() - before:
                break
            assert program.poll() is None
            threading.Event().wait(0.01)
        program.send_signal(signal.SIGINT)
        try:
            _, stderr = program.communicate(timeout=30)
        finally:
            program.kill()  # Popen waits for the program without a timeout
    assert stderr.rstrip().endswith("KeyboardInterrupt")
    assert stderr.count("Traceback") == 1
    assert service.key not in stderr
