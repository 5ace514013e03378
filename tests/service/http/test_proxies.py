"""Trust in the client addresses that proxies forward."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db import Database
from meshfleet.db import sqlite as sqlite_engines
from meshfleet.service.http.access import get_client_address
from meshfleet.settings import Settings
from tests.row_tables import each_row
from tests.service.http.running_service import RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROXIES = ("127.0.0.1", "10.0.0.0/8", "2001:db8::/32")


@pytest.fixture(scope="module")
def proxied_service(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """Run a service that trusts 127.0.0.1, the address of the tests, and two networks."""
    with _run_with_trusted(sqlite_template, tmp_path_factory, *PROXIES) as service:
        yield service


@pytest.fixture(scope="module", params=[(), ("10.0.0.0/8", "::1")], ids=["none", "others"])
def direct_service(
    request: pytest.FixtureRequest, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """Run a service that does not trust the address of the tests."""
    with _run_with_trusted(sqlite_template, tmp_path_factory, *request.param) as service:
        yield service


@contextmanager
def _run_with_trusted(
    template: Path, folders: pytest.TempPathFactory, *networks: str
) -> Iterator[RunningService]:
    path = folders.mktemp("proxies") / "meshfleet.sqlite"
    shutil.copy(template, path)
    database = Database(sqlite_engines.create_sqlite_engines(path))
    with run_service(database, Settings(trusted_proxies=tuple(map(ip_network, networks)))) as service:
        yield service
    database.close()


@pytest.mark.rule("rest-169")
def test_the_readiness_check_says_what_became_of_the_forwarded_address(
    proxied_service: RunningService, direct_service: RunningService
) -> None:
    forwarded = {"X-Forwarded-For": "203.0.113.7"}
    found = [
        service.anonymous.get("/readyz", headers=headers).headers["X-Meshfleet-Forwarding"]
        for service, headers in (
            (proxied_service, forwarded),
            (direct_service, forwarded),
            (direct_service, {}),
        )
    ]
    assert found == ["trusted", "ignored", "absent"]


@pytest.mark.rule("rest-169")
@each_row("forwarded", ["203.0.113.7", "10.1.1.1", "127.0.0.2", "2001:db8::1", "203.0.113.7, 127.0.0.1"])
def test_an_untrusted_forwarded_address_is_ignored(direct_service: RunningService, forwarded: str) -> None:
    assert _find_recorded_address(direct_service, forwarded) == "127.0.0.1"


@pytest.mark.rule("rest-169")
@each_row(
    ("forwarded", "address"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("203.0.113.7 ,   10.1.1.1", "203.0.113.7"),
        ("203.0.113.7:4711", "203.0.113.7"),
        ("203.0.113.7, 10.1.1.1", "203.0.113.7"),
        ("203.0.113.7, 10.1.1.1, 10.2.2.2", "203.0.113.7"),
        ("198.51.100.1, 203.0.113.7", "203.0.113.7"),
        ("198.51.100.1, 203.0.113.7, 10.1.1.1", "203.0.113.7"),
        ("10.9.9.9, 203.0.113.7, 10.1.1.1", "203.0.113.7"),
        ("127.0.0.1, 203.0.113.7", "203.0.113.7"),
        ("2001:470::7", "2001:470::7"),
        ("[2001:470::7]:4711", "2001:470::7"),
        ("203.0.113.7, 2001:db8::1", "203.0.113.7"),
        ("2001:470::7, 2001:db8::1, 10.1.1.1", "2001:470::7"),
    ],
)
def test_the_last_untrusted_forwarded_address_is_the_client(
    proxied_service: RunningService, forwarded: str, address: str
) -> None:
    assert _find_recorded_address(proxied_service, forwarded) == address


@pytest.mark.rule("rest-169")
def test_repeated_headers_are_one_list(proxied_service: RunningService) -> None:
    assert _find_recorded_address(proxied_service, "198.51.100.1", "203.0.113.7", "10.1.1.1") == "203.0.113.7"


@pytest.mark.rule("rest-169")
@each_row("forwarded", [(), ("",), (",",), (", ,",)])
def test_a_proxy_that_forwards_no_address_is_the_client(
    proxied_service: RunningService, forwarded: tuple[str, ...]
) -> None:
    assert _find_recorded_address(proxied_service, *forwarded) == "127.0.0.1"


@pytest.mark.rule("rest-169")
@each_row("forwarded", ["unknown", "_hidden", "999.1.1.1", "x" * 5000, "203.0.113.7 evil", "é"])
def test_an_invalid_forwarded_address_is_ignored(proxied_service: RunningService, forwarded: str) -> None:
    assert _find_recorded_address(proxied_service, forwarded) in {"127.0.0.1", None}


@pytest.mark.rule("rest-169", "auth-15")
def test_the_throttle_uses_the_forwarded_address(proxied_service: RunningService) -> None:
    username = proxied_service.new_name("guessed")
    guesses = [_guess(proxied_service, username, "203.0.113.66") for _ in range(6)]
    assert guesses[:5] == [401] * 5
    assert guesses[5] == 429
    assert _guess(proxied_service, username, "203.0.113.77") == 401


@pytest.mark.rule("rest-169", "auth-13")
def test_the_throttle_ignores_addresses_forged_by_clients(direct_service: RunningService) -> None:
    username = direct_service.new_name("guessed")
    guesses = [_guess(direct_service, username, f"203.0.113.{number}") for number in range(6)]
    assert guesses[5] == 429


@pytest.mark.rule("rest-169", "auth-13")
def test_the_throttle_ignores_addresses_forged_by_clients_of_a_proxy(proxied_service: RunningService) -> None:
    username = proxied_service.new_name("guessed")
    guesses = [_guess(proxied_service, username, f"198.51.100.{number}, 203.0.113.88") for number in range(6)]
    assert guesses[5] == 429


def test_tls_of_a_trusted_proxy_counts_as_tls(
    proxied_service: RunningService, direct_service: RunningService
) -> None:
    headers = {"X-Forwarded-Proto": "https"}
    assert "Strict-Transport-Security" in proxied_service.anonymous.get("/healthz", headers=headers).headers
    assert "Strict-Transport-Security" not in proxied_service.anonymous.get("/healthz").headers
    assert (
        "Strict-Transport-Security" not in direct_service.anonymous.get("/healthz", headers=headers).headers
    )


@each_row("name", ["Forwarded", "X-Real-IP", "CF-Connecting-IP", "True-Client-IP"])
def test_other_headers_are_not_trusted(proxied_service: RunningService, name: str) -> None:
    label = proxied_service.new_name("label")
    response = proxied_service.admin.post(
        "/api/v1/labels", json={"label": label}, headers={name: "for=203.0.113.7"}
    )
    assert response.status_code == 200
    assert _load_address(proxied_service, label) == "127.0.0.1"


def _find_recorded_address(service: RunningService, *forwarded: str) -> str | None:
    """Make a change with these forwarded addresses and return the address in the audit log."""
    label = service.new_name("label")
    headers = [("X-Forwarded-For", each.encode("latin-1")) for each in forwarded]
    response = service.admin.post("/api/v1/labels", json={"label": label}, headers=headers)  # type: ignore[arg-type] # httpx accepts bytes, too
    assert response.status_code == 200
    return _load_address(service, label)


def _load_address(service: RunningService, label: str) -> str | None:
    rows = service.admin.get("/api/v1/audit", params={"Target": label}).json()["items"]
    assert [row["action"] for row in rows] == ["label.create"]
    address: str | None = rows[0]["address"]
    return address


def _guess(service: RunningService, username: str, forwarded: str) -> int:
    return service.anonymous.post(
        "/api/v1/auth/login",
        json={"username": username, "password": "wrong-one"},
        headers={"X-Forwarded-For": forwarded},
    ).status_code


@pytest.mark.rule("rest-169")
@each_row(
    ("forwarded", "address"),
    [
        ("::ffff:203.0.113.7", "203.0.113.7"),  # IPv4-mapped, on a dual-stack socket
        ("2001:DB8:0::7", "2001:db8::7"),
        ("203.0.113.7", "203.0.113.7"),
        ("unknown", None),
    ],
)
def test_an_address_is_normalized(forwarded: str, address: str | None) -> None:
    scope: Any = {"client": (forwarded, 1)}
    assert get_client_address(scope) == address
