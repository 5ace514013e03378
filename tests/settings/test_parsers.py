"""Parsers of settings."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.startup import WrongSettings
from meshfleet.settings import SETTINGS, ListenAddress, load_settings
from tests.row_tables import each_row
from tests.settings.from_flags import faults, settings


@each_row(
    ("text", "listen"),
    [
        ("127.0.0.1:0", ListenAddress("127.0.0.1", 0)),
        ("0.0.0.0:65535", ListenAddress("0.0.0.0", 65535)),  # noqa: S104 # parsed, not bound
        ("[::1]:8080", ListenAddress("::1", 8080)),
        ("meshfleet_web-1.example.org:80", ListenAddress("meshfleet_web-1.example.org", 80)),
    ],
)
def test_a_listen_address_is_parsed_and_formatted(text: str, listen: ListenAddress) -> None:
    assert settings(http=text).http == listen
    assert str(listen) == text


@each_row(
    "text",
    [
        "",
        "8080",
        ":8080",
        "host:",
        "host:65536",
        "::1:8080",
        "[::g]:1",
        "[host]:1",
        "host:1\n",
        "-host:1",
        "host:\u0661",
    ],
)
def test_an_invalid_listen_address_is_refused(text: str) -> None:
    ((field, message),) = faults(http=text)
    assert field == "--http"
    assert "is not a host and a port" in message


@each_row(
    ("text", "url"),
    [
        ("https://fleet.example.org", "https://fleet.example.org"),
        ("https://fleet.example.org/", "https://fleet.example.org"),
        ("HTTP://[::1]:8080/fleet/", "http://[::1]:8080/fleet"),
    ],
)
def test_a_public_url_has_no_trailing_slash(text: str, url: str) -> None:
    assert settings(public_url=text).public_url == url


@each_row(
    "text",
    [
        "ftp://host",
        "http://",
        "http://host:x",
        "http://host?a=b",
        "http://host/#top",
        "http://user:hunter2@host",
        "http://[::g]/",
    ],
)
def test_an_invalid_public_url_is_refused_and_not_repeated(text: str) -> None:
    ((field, message),) = faults(public_url=text)
    assert field == "--public-url"
    assert "hunter2" not in message


@each_row(
    ("text", "address"),
    [
        ("sqlite", "sqlite"),
        ("postgresql://host/name", "postgresql://host/name"),
        ("postgres://u:p%40ss#/?@[::1]:5432/name", "postgresql://u:p%40ss#/?@[::1]:5432/name"),
        ("postgresql:///name?host=/run/postgresql", "postgresql:///name?host=/run/postgresql"),
    ],
)
def test_a_database_is_parsed(text: str, address: str) -> None:
    assert settings(database=text).database == address


@each_row(
    "text",
    [
        "",
        "sqlite:///x?hunter2",
        "mysql://u:hunter2@host/name",
        "postgresql://u:hunter2@host:port/name",
        "postgresql:hunter2",
        "postgresql://u:hunter2@host :1/x",
    ],
)
def test_an_invalid_database_is_refused_and_never_repeated(text: str) -> None:
    ((field, message),) = faults({"MESHFLEET_DATABASE": text}) if text else faults(database=text)
    assert field == ("MESHFLEET_DATABASE" if text else "--database")
    assert "hunter2" not in message


@each_row("path", ["~/fleet", "~"])
def test_a_path_may_begin_with_the_home_directory(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert settings(data=path).data == Path(path.replace("~", "/home/ada"))


@each_row("path", ["", "a\0b", "~no-such-user-here/fleet"])
def test_an_invalid_path_is_refused(path: str) -> None:
    assert [fault.field for fault in faults(data=path)] == ["--data"]


@pytest.mark.rule("rest-169")
def test_proxies_are_addresses_and_networks() -> None:
    found = settings(trusted_proxies="127.0.0.1, 10.0.0.0/8,2001:db8::/32,").trusted_proxies
    assert found == tuple(map(ip_network, ("127.0.0.1", "10.0.0.0/8", "2001:db8::/32")))


@each_row("text", ["proxy.example.org", "10.0.0.1/8", "10.0.0.0/33", "*"])
def test_an_invalid_proxy_is_refused_and_named(text: str) -> None:
    ((field, message),) = faults(trusted_proxies=f"127.0.0.1,{text}")
    assert field == "--trusted-proxies"
    assert message.startswith(repr(text))


@pytest.mark.rule("rest-166")
@each_row(("text", "seconds"), [("90", 90), ("0.5", 0.5), ("1.250", 1.25), ("086400", 86400)])
def test_a_duration_is_in_seconds(text: str, seconds: float, folder: Path) -> None:
    (folder / "meshfleet.toml").unlink(missing_ok=True)  # of the previous row
    assert settings(requests_max_age=text).requests_max_age == seconds
    (folder / "meshfleet.toml").write_text(f"requests.max-age = {seconds}")
    assert settings().requests_max_age == seconds


@pytest.mark.rule("rest-166")
@each_row(
    "text",
    [
        "",
        "0",
        "0.0",
        "-1",
        "60s",
        "1m",
        "1:00",
        ".5",
        "5.",
        "1e2",
        "nan",
        "inf",
        " 60",
        "1_0",
        "\u0661",
        "9" * 400,
    ],
)
def test_an_invalid_duration_is_refused(text: str) -> None:
    ((field, message),) = faults(requests_max_age=text)
    assert field == "--requests-max-age"
    assert "is not a positive number of seconds" in message


@pytest.mark.rule("request-36")
@each_row(("text", "is_valid"), [("1", True), ("1000", True), ("0", False), ("1001", False)])
@each_row("source", ["flag", "file"])
def test_concurrent_requests_per_gateway_are_1_to_1000(
    text: str, source: str, folder: Path, *, is_valid: bool
) -> None:
    (folder / "meshfleet.toml").unlink(missing_ok=True)  # of the previous row
    flags = {"requests_at_once": text} if source == "flag" else {}
    if source == "file":
        (folder / "meshfleet.toml").write_text(f"requests.at-once = {text}")
    if is_valid:
        assert settings(**flags).requests_at_once == int(text)
    else:
        ((field, _),) = faults(**flags)
        assert field == ("--requests-at-once" if source == "flag" else "meshfleet.toml: requests.at-once")


_NUMBERS = ["requests.max-age", "requests.at-once", "limits.retained", "limits.connect-seconds"]


@each_row("name", _NUMBERS)
@each_row("value", ["true", "[1]", "nan", "inf", "-1", "2026-01-01", "01:00:00"])
def test_a_value_in_the_file_that_is_not_a_number_is_refused(name: str, value: str, folder: Path) -> None:
    (folder / "meshfleet.toml").write_text(f"{name} = {value}")
    assert [fault.field for fault in faults()] == [f"meshfleet.toml: {name}"]


_PARTS = [
    "postgresql",
    "http",
    "mqtt",
    "://",
    ":",
    "@",
    "/",
    "[",
    "]",
    "::1",
    "host",
    "80",
    "~",
    "%",
    "\0",
    ".",
]


@given(
    st.sampled_from([each.name for each in SETTINGS]),
    st.lists(st.sampled_from(_PARTS) | st.text()).map("".join),
)
def test_any_text_is_parsed_or_refused(name: str, text: str) -> None:
    with suppress(WrongSettings):
        load_settings({name: text}, {})
