"""Messages to systemd, which started the service: ready, status, reloading, stopping, alive (sd_notify).

Without systemd (no NOTIFY_SOCKET in the environment) nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

_log = logging.getLogger(__name__)

_START_SECONDS: Final = 60
"""Seconds that systemd waits for the next message of a service that is starting."""

_START_INTERVAL_SECONDS: Final = 10.0
"""Seconds between two messages of a service that is starting."""


class SystemdNotifier:
    """Sends messages to the socket of systemd."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        """Read the address of the socket and the watchdog interval from environment variables."""
        address = variables.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the null byte of an abstract socket.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._is_ready = False
        self.watchdog_seconds = _parse_watchdog(variables) if address else None
        """Seconds after which systemd restarts the service without a message; None if it does not."""

    @property
    def is_enabled(self) -> bool:
        """Whether systemd expects messages."""
        return bool(self._address)

    def send(self, *assignments: str) -> None:
        """Send assignments such as `READY=1` to systemd in one message. A failure is only logged."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto("\n".join(assignments).encode(), self._address)
        except OSError as exc:
            _log.warning("systemd cannot be notified (%s): %s", assignments[0], exc.strerror or exc)

    def send_status(self, text: str, *assignments: str) -> None:
        """Send a status line, which `systemctl status` shows, together with other assignments."""
        self.send(*assignments, f"STATUS={' '.join(text.split())}")

    def send_ready(self) -> None:
        """Report that the service has started."""
        self._is_ready = True
        self.send("READY=1")

    def send_reloading(self) -> None:
        """Report that the settings are read again. A service that is starting does not report this."""
        if self._is_ready:
            self.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def send_reloaded(self) -> None:
        """Report that reading the settings again has ended."""
        if self._is_ready:
            self.send("READY=1")

    @asynccontextmanager
    async def extend_start(self, status: str) -> AsyncIterator[None]:
        """Keep systemd from stopping the service during the `async with` block, a long step of its start."""
        extending = asyncio.create_task(self._extend_start(status), name="systemd.start")
        try:
            yield
        finally:
            extending.cancel()

    async def _extend_start(self, status: str) -> None:
        while self.is_enabled:
            self.send_starting(status)
            await asyncio.sleep(_START_INTERVAL_SECONDS)

    def send_starting(self, status: str) -> None:
        """Report that the service is still starting, and ask systemd to wait for the next message."""
        self.send_status(status, f"EXTEND_TIMEOUT_USEC={_START_SECONDS * 1_000_000}")

    async def run_watchdog(self, is_alive: Callable[[float], bool]) -> None:
        """Report twice per watchdog interval that the service is alive, until canceled.

        `is_alive` gets the interval in seconds. While it returns False, nothing is sent, so that systemd
        restarts the service.
        """
        if (interval := self.watchdog_seconds) is None:
            return
        while True:
            if is_alive(interval):
                self.send("WATCHDOG=1")
            else:
                _log.error("no reports are committed for %g s: systemd will restart the service", interval)
            await asyncio.sleep(interval / 2)


def _parse_watchdog(variables: Mapping[str, str]) -> float | None:
    """Return the watchdog interval in seconds; None if there is none, or only for another process."""
    if variables.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = variables.get("WATCHDOG_USEC", "")
    return int(text) / 1_000_000 if text.isdecimal() and int(text) else None
