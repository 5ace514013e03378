"""Clients of a service that seem to come from many places."""

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
    """Stands still until it is moved: however slow the machine is, a test sees the same."""

    def __init__(self) -> None:
        super().__init__()
        self._stands_at = super().steady()

    def steady(self) -> int:
        return self._stands_at + self._passed + self._epoch


def behind_a_proxy(request: pytest.FixtureRequest, database_kind: str) -> Iterator[RunningService]:
    """A service, for a module, that believes us where a request comes from, with a clock that stands."""
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
