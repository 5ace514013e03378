"""Clients of a service that seem to come from many places."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

from meshfleet.settings import Settings
from tests.service.http.running import PASSWORD, Running, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx
    import pytest

    from meshfleet.db import Database

LOGIN: Final = "/api/v1/auth/login"


def behind_a_proxy(request: pytest.FixtureRequest) -> Iterator[Running]:
    """A service, for a module, that believes us where a request comes from."""
    database: Database = request.getfixturevalue(f"{request.param}_of_module")
    with running(database, Settings(trusted_proxies=(ip_network("127.0.0.1"),))) as service:
        yield service
    database.close()


def try_login(service: Running, username: str, password: str = PASSWORD, *, at: str) -> httpx.Response:
    """Try to log in from an address."""
    return service.anonymous.post(
        LOGIN, json={"username": username, "password": password}, headers={"X-Forwarded-For": at}
    )
