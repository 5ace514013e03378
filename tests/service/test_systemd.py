"""Messages to systemd, received by a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import socket
from secrets import token_hex
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.ingest.commit_timer import CommitTimer
from meshfleet.service.systemd import SystemdNotifier
from tests.eventually import eventually_async
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Systemd:
    """Socket on which systemd receives messages."""

    def __init__(self, address: str) -> None:
        self.variables = {"NOTIFY_SOCKET": address}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(0)
        self._socket.bind(address.replace("@", "\0"))

    def close(self) -> None:
        self._socket.close()

    def receive(self) -> list[str]:
        """Return all messages that have arrived."""
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return messages


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Systemd]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@meshfleet-test-{token_hex(8)}"
    receiver = Systemd(address)
    yield receiver
    receiver.close()


def test_messages_reach_a_socket_in_the_file_system_and_an_abstract_one(systemd: Systemd) -> None:
    notifier = SystemdNotifier(systemd.variables)
    notifier.send_reloading()
    notifier.send_reloaded()
    assert systemd.receive() == [], "a service that is starting is not reloading"
    notifier.send_ready()
    notifier.send_status("57 of 64 devices,\n3 gateways")
    notifier.send_reloading()
    notifier.send_reloaded()
    ready, status, reloading, reloaded = systemd.receive()
    assert (ready, status, reloaded) == ("READY=1", "STATUS=57 of 64 devices, 3 gateways", "READY=1")
    first, second = reloading.split("\n")
    assert first == "RELOADING=1"
    assert second.removeprefix("MONOTONIC_USEC=").isdecimal()


def test_without_systemd_nothing_is_sent_and_a_missing_socket_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    SystemdNotifier({"WATCHDOG_USEC": "1000000"}).send("READY=1")
    assert SystemdNotifier({"WATCHDOG_USEC": "1000000"}).watchdog_seconds is None
    assert not caplog.records
    SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "missing")}).send("READY=1", "STATUS=x")
    (record,) = caplog.records
    assert record.getMessage() == "systemd cannot be notified (READY=1): No such file or directory"


async def test_a_long_start_asks_systemd_for_more_time(tmp_path: Path) -> None:
    systemd = Systemd(str(tmp_path / "notify"))
    async with SystemdNotifier(systemd.variables).extend_start("Starting: migrating."):
        (message,) = await eventually_async(systemd.receive, "the first message")
    systemd.close()
    assert message == "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=Starting: migrating."


@each_row(
    ("variables", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_interval_is_that_of_this_process(
    variables: dict[str, str], expected: float | None
) -> None:
    assert SystemdNotifier({"NOTIFY_SOCKET": "/x", **variables}).watchdog_seconds == expected


async def test_the_watchdog_is_not_served_while_a_commit_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = 0.0
    timer = CommitTimer(lambda: seconds)
    systemd = Systemd(str(tmp_path / "notify"))
    notifier = SystemdNotifier({**systemd.variables, "WATCHDOG_USEC": "20000"})
    watchdog = asyncio.create_task(notifier.run_watchdog(timer.is_progressing))
    await eventually_async(systemd.receive, "a message of an idle service")
    with timer.measure():
        await eventually_async(systemd.receive, "a message during a commit")
        seconds = 1.0
        await eventually_async(lambda: caplog.records, "that the hanging commit is noticed")
        systemd.receive()
        caplog.clear()
        await eventually_async(lambda: caplog.records, "the next check")
        assert systemd.receive() == []
    assert "WATCHDOG=1" in await eventually_async(systemd.receive, "a message after the commit")
    watchdog.cancel()
    systemd.close()
