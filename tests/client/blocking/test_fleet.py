"""A fleet for programs without an event loop."""

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
from meshfleet.errors.mqtt import LinkClosed
from tests.servers import free_port
from tests.service.http.running_service import PASSWORD
from tests.service.ingest.messages import heartbeat, temperature

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService


def loops() -> set[threading.Thread]:
    """The threads of fleets that are open."""
    return {each for each in threading.enumerate() if each.name == "Fleet"}


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
        kept = fleet.log_in()
    with Fleet(session=kept) as fleet:
        assert fleet.me().username == kept.user
    assert not loops()


def test_nothing_is_left_of_a_fleet_that_is_closed(service: LiveService) -> None:
    for _ in range(2):
        service.new_device()
    fleet = Fleet(service.url, token=service.key)
    with fleet:
        assert len(loops()) == 1
        devices = fleet.devices.list()
        assert next(devices).id
    assert not loops()
    with pytest.raises(LinkClosed, match="not open"):
        fleet.me()
    with pytest.raises(LinkClosed, match="not open"):
        next(devices)
    with pytest.raises(StopIteration):
        next(devices)
    del devices
    gc.collect()
    assert not loops()


def test_a_fleet_is_open_once_at_a_time(service: LiveService) -> None:
    with Fleet(service.url, token=service.key) as fleet:
        with pytest.raises(LinkClosed, match="already"):
            fleet.__enter__()
        assert fleet.me().kind == "api-key"
    assert not loops()


def test_a_fleet_is_used_inside_of_its_block() -> None:
    fleet = Fleet("http://127.0.0.1", token="mfk_x")  # noqa: S106 # of nobody
    with pytest.raises(LinkClosed, match="with"):
        fleet.me()
    with pytest.raises(LinkClosed, match="with"):
        next(fleet.labels.list())


def test_an_error_inside_of_the_block_closes_it(service: LiveService) -> None:
    with pytest.raises(NotFound), Fleet(service.url, token=service.key) as fleet:
        fleet.devices.show(service.new_mac())
    assert not loops()


def test_many_threads_share_one_fleet(service: LiveService) -> None:
    devices = [service.new_device() for _ in range(40)]
    with (
        Fleet(service.url, user=service.new_user(), password=PASSWORD) as fleet,
        ThreadPoolExecutor(8) as threads,
    ):
        assert [each.id for each in threads.map(fleet.devices.show, devices)] == devices
        lists = threads.map(lambda each: [one.id for one in fleet.devices.list(ids=each)], devices)
        assert list(lists) == [[each] for each in devices]
        assert len(loops()) == 1


def test_a_list_that_is_left_early_lets_go(service: LiveService) -> None:
    device = service.new_mac()
    at = service.clock()
    service.ingest_and_flush(
        *(temperature(at + place, device=device, seq=place % 256) for place in range(300))
    )
    with Fleet(service.url, token=service.key) as fleet:
        for _ in fleet.samples.csv(device):
            break
        for _ in fleet.samples.list(device):
            break
        assert len(list(fleet.samples.csv(device))) == 301


def test_live_events_are_iterated(service: LiveService) -> None:
    device = service.new_mac()
    heard: list[str] = []
    with Fleet(service.url, token=service.key) as fleet:
        events = fleet.live(types="report", ids=device)
        listener = threading.Thread(target=lambda: heard.append(next(events).type))
        listener.start()
        for number in range(3000):
            service.ingest(heartbeat(service.clock(), device=device, seq=number % 256))
            listener.join(0.01)
            if heard:
                break
        assert heard == ["report"]
        events.close()
        listener.join()


def test_who_waits_when_it_is_closed_is_told(service: LiveService) -> None:
    failed: list[BaseException] = []
    fleet = Fleet(service.url, token=service.key)

    def listen() -> None:
        try:
            for _ in fleet.live(types="report", ids=service.new_mac()):
                pass
        except LinkClosed as exc:
            failed.append(exc)

    with fleet:
        before = service.subscribers()
        listener = threading.Thread(target=listen)
        listener.start()
        while service.subscribers() <= before:
            listener.join(0.01)
            assert listener.is_alive()
    listener.join(30)
    assert not listener.is_alive()
    assert len(failed) == 1


def test_where_nobody_listens_is_no_service() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Fleet(url, token="mfk_x") as fleet, pytest.raises(ServiceUnreachable):  # noqa: S106 # of nobody
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


def test_ctrl_c_ends_a_program_that_waits(service: LiveService) -> None:
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
            _, words = program.communicate(timeout=30)
        finally:
            program.kill()  # else one that goes on would be waited for without end
    assert words.rstrip().endswith("KeyboardInterrupt")
    assert words.count("Traceback") == 1
    assert service.key not in words
