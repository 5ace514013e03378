"""Whose word on a client's address counts."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db import Database
from meshfleet.db import sqlite as in_file
from meshfleet.service.http.access import get_client_address
from meshfleet.settings import Settings
from tests.row_tables import each_row
from tests.service.http.running_service import RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROXIES = ("127.0.0.1", "10.0.0.0/8", "2001:db8::/32")


@pytest.fixture(scope="module")
def behind(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service that trusts us, who speak from 127.0.0.1, and two networks."""
    with _trusting(sqlite_template, tmp_path_factory, *PROXIES) as service:
        yield service


@pytest.fixture(scope="module", params=[(), ("10.0.0.0/8", "::1")], ids=["nobody", "others"])
def bare(
    request: pytest.FixtureRequest, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """A service that trusts nobody, or others."""
    with _trusting(sqlite_template, tmp_path_factory, *request.param) as service:
        yield service


@contextmanager
def _trusting(template: Path, folders: pytest.TempPathFactory, *networks: str) -> Iterator[RunningService]:
    path = folders.mktemp("proxies") / "meshfleet.sqlite"
    shutil.copy(template, path)
    database = Database(in_file.create_sqlite_engines(path))
    with run_service(database, Settings(trusted_proxies=tuple(map(ip_network, networks)))) as service:
        yield service
    database.close()


@pytest.mark.rule("rest-169")
@each_row("told", ["203.0.113.7", "10.1.1.1", "127.0.0.2", "2001:db8::1", "203.0.113.7, 127.0.0.1"])
def test_without_trust_nobody_is_believed(bare: RunningService, told: str) -> None:
    assert _address(bare, told) == "127.0.0.1"


@pytest.mark.rule("rest-169")
@each_row(
    ("told", "address"),
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
def test_behind_a_trusted_proxy_the_last_address_that_is_none_of_ours_counts(
    behind: RunningService, told: str, address: str
) -> None:
    assert _address(behind, told) == address


@pytest.mark.rule("rest-169")
def test_several_headers_are_one_list(behind: RunningService) -> None:
    assert _address(behind, "198.51.100.1", "203.0.113.7", "10.1.1.1") == "203.0.113.7"


@pytest.mark.rule("rest-169")
@each_row("told", [(), ("",), (",",), (", ,",)])
def test_a_proxy_that_tells_nothing_is_the_client(behind: RunningService, told: tuple[str, ...]) -> None:
    assert _address(behind, *told) == "127.0.0.1"


@pytest.mark.rule("rest-169")
@each_row("told", ["unknown", "_hidden", "999.1.1.1", "x" * 5000, "203.0.113.7 evil", "é"])
def test_what_is_no_address_is_not_taken_for_one(behind: RunningService, told: str) -> None:
    assert _address(behind, told) in {"127.0.0.1", None}


@pytest.mark.rule("rest-169", "auth-15")
def test_the_throttle_goes_by_the_address_that_the_proxy_tells(behind: RunningService) -> None:
    username = behind.new_name("guessed")
    guesses = [_guess(behind, username, "203.0.113.66") for _ in range(6)]
    assert guesses[:5] == [401] * 5
    assert guesses[5] == 429
    assert _guess(behind, username, "203.0.113.77") == 401


@pytest.mark.rule("rest-169", "auth-13")
def test_the_throttle_is_not_fooled_by_what_clients_tell(bare: RunningService) -> None:
    username = bare.new_name("guessed")
    guesses = [_guess(bare, username, f"203.0.113.{number}") for number in range(6)]
    assert guesses[5] == 429


@pytest.mark.rule("rest-169", "auth-13")
def test_the_throttle_is_not_fooled_by_what_clients_tell_a_proxy(behind: RunningService) -> None:
    username = behind.new_name("guessed")
    guesses = [_guess(behind, username, f"198.51.100.{number}, 203.0.113.88") for number in range(6)]
    assert guesses[5] == 429


def test_a_proxy_that_speaks_tls_counts_as_tls_if_it_is_trusted(
    behind: RunningService, bare: RunningService
) -> None:
    headers = {"X-Forwarded-Proto": "https"}
    assert "Strict-Transport-Security" in behind.anonymous.get("/healthz", headers=headers).headers
    assert "Strict-Transport-Security" not in behind.anonymous.get("/healthz").headers
    assert "Strict-Transport-Security" not in bare.anonymous.get("/healthz", headers=headers).headers


@each_row("name", ["Forwarded", "X-Real-IP", "CF-Connecting-IP", "True-Client-IP"])
def test_other_headers_tell_no_address(behind: RunningService, name: str) -> None:
    label = behind.new_name("label")
    answer = behind.admin.post("/api/v1/labels", json={"label": label}, headers={name: "for=203.0.113.7"})
    assert answer.status_code == 200
    assert _row(behind, label) == "127.0.0.1"


def _address(service: RunningService, *told: str) -> str | None:
    """The address that the audit log has for a change that comes with this."""
    label = service.new_name("label")
    headers = [("X-Forwarded-For", each.encode("latin-1")) for each in told]
    answer = service.admin.post("/api/v1/labels", json={"label": label}, headers=headers)  # type: ignore[arg-type] # httpx takes both
    assert answer.status_code == 200
    return _row(service, label)


def _row(service: RunningService, label: str) -> str | None:
    rows = service.admin.get("/api/v1/audit", params={"Target": label}).json()["items"]
    assert [row["action"] for row in rows] == ["label.create"]
    address: str | None = rows[0]["address"]
    return address


def _guess(service: RunningService, username: str, told: str) -> int:
    return service.anonymous.post(
        "/api/v1/auth/login",
        json={"username": username, "password": "wrong-one"},
        headers={"X-Forwarded-For": told},
    ).status_code


@pytest.mark.rule("rest-169")
@each_row(
    ("told", "address"),
    [
        ("::ffff:203.0.113.7", "203.0.113.7"),  # on a listener for IPv4 and IPv6
        ("2001:DB8:0::7", "2001:db8::7"),
        ("203.0.113.7", "203.0.113.7"),
        ("unknown", None),
    ],
)
def test_an_address_has_one_spelling(told: str, address: str | None) -> None:
    scope: Any = {"client": (told, 1)}
    assert get_client_address(scope) == address
