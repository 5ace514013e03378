"""A service behind a trusted proxy, and logins from chosen client addresses."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

from meshfleet.settings import Settings
from tests.databases import fresh_database
from tests.mqtt.broker.running_broker import Clock
from tests.service.http.running_service import PASSWORD, RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx
    import pytest


LOGIN: Final = "/api/v1/auth/login"


class FrozenClock(Clock):
    """Clock that stands still until it is moved, so that slow machines do not change the results."""

    def __init__(self) -> None:
        super().__init__()
        self._stands_at = super().monotonic()

    def monotonic(self) -> int:
        return self._stands_at + self._passed + self._epoch


def behind_a_proxy(request: pytest.FixtureRequest, database_kind: str) -> Iterator[RunningService]:
    """Run a service that trusts the tests' X-Forwarded-For header, with a frozen clock."""
    database = fresh_database(request, database_kind)
    settings = Settings(trusted_proxies=(ip_network("127.0.0.1"),))
    with run_service(database, settings, clock=FrozenClock()) as service:
        yield service
    database.close()


def try_login(service: RunningService, username: str, password: str = PASSWORD, *, at: str) -> httpx.Response:
    """Try to log in from an address."""
    return service.anonymous.post(
        LOGIN, json={"username": username, "password": password}, headers={"X-Forwarded-For": at}
    )
