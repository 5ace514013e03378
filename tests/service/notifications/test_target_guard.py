"""Hosts to which the URLs of channels may lead: public ones, and those that the operator opens."""

from __future__ import annotations

import socket
from ipaddress import ip_network
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import TargetForbidden
from meshfleet.service.notifications.target_guard import (
    MAX_URL_LENGTH,
    TargetGuard,
    TargetUnresolved,
    check_target,
    resolve_host,
)
from meshfleet.settings.model import WebhookSettings
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.service.notifications.target_guard import Resolver

pytestmark = pytest.mark.anyio

CLOSED = WebhookSettings()
EVERYTHING = WebhookSettings(allow=(ip_network("0.0.0.0/0"), ip_network("::/0")), allow_http=True)


def lead_to(*addresses: str) -> Resolver:
    async def resolve(_host: str, _port: int) -> list[str]:
        return list(addresses)

    return resolve


async def fail(_host: str, _port: int) -> list[str]:
    raise socket.gaierror(socket.EAI_NONAME, "unknown")


PRIVATE = [
    *("127.0.0.1", "2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "017700000001"),
    *("10.0.0.1", "167772161", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1", "192.0.2.1"),
    *("localhost", "１２７.0.0.1", "127。0。0。1"),  # noqa: RUF001 # digits that are normalized
    *("[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:10.0.0.1]", "[::ffff:7f00:1]", "[::10.0.0.1]"),
    *("[::ffff:0:10.0.0.1]", "[64:ff9b::10.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::10.0.0.1]"),
    *("[2002:0a00:0001::1]", "[2002:7f00:1::]", "[2001:0:1::1]", "[fc00::1]", "[fd12:3456::1]"),
    *("[fec0::1]", "[2001:db8::1]", "[100::1]", "[4000::1]", "[5f00::1]"),
]
"""Hosts that are not public, in many spellings."""

NEVER = [
    *("0.0.0.0", "0", "0.1.2.3", "169.254.169.254", "2852039166", "0xa9fea9fe"),  # noqa: S104 # not bound
    *("100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "239.255.255.250", "255.255.255.255"),
    *("[::]", "[fe80::1]", "[fd00:ec2::254]", "[fd20:ce::254]", "[ff02::1]", "[::ffff:169.254.169.254]"),
    *("[::ffff:0.0.0.0]", "[64:ff9b::169.254.169.254]", "[2002:a9fe:a9fe::]", "[::169.254.169.254]"),
    *("[::ffff:224.0.0.1]", "169.254.1.1"),
]
"""Hosts that no setting opens."""


@each_row("host", [*PRIVATE, *NEVER])
async def test_addresses_that_are_not_public_are_refused(host: str) -> None:
    with pytest.raises(TargetForbidden) as raised:
        await check_target(f"https://{host}/secret-path?token=secret", CLOSED)
    assert "secret" not in str(raised.value)
    with pytest.raises(TargetForbidden):
        await TargetGuard(CLOSED).resolve_target(f"https://{host}/")


@each_row("host", PRIVATE)
async def test_a_setting_opens_private_addresses(host: str) -> None:
    target = await TargetGuard(EVERYTHING).resolve_target(f"https://{host}/")
    assert target.addresses


@each_row("host", NEVER)
async def test_metadata_services_link_local_and_multicast_addresses_are_never_open(host: str) -> None:
    with pytest.raises(TargetForbidden, match="never"):
        await check_target(f"https://{host}/", EVERYTHING)


@each_row(
    ("network", "host", "is_open"),
    [
        ("10.20.0.0/16", "10.20.3.4", True),
        ("10.20.0.0/16", "10.21.3.4", False),
        ("10.20.0.0/16", "[::ffff:10.20.3.4]", True),
        ("10.20.0.0/16", "[64:ff9b::10.20.3.4]", True),
        ("10.20.0.0/16", "[::ffff:10.21.3.4]", False),
        ("127.0.0.1/32", "2130706433", True),
        ("127.0.0.1/32", "127.0.0.2", False),
        ("::1/128", "[::1]", True),
        ("fd12::/16", "[fd12::1]", True),
        ("fd12::/16", "[fd13::1]", False),
    ],
)
async def test_only_the_allowed_networks_are_open(network: str, host: str, *, is_open: bool) -> None:
    guard = TargetGuard(WebhookSettings(allow=(ip_network(network),)))
    if is_open:
        await guard.check(f"https://{host}/")
    else:
        with pytest.raises(TargetForbidden, match=r"webhooks\.allow"):
            await guard.check(f"https://{host}/")


@each_row(
    ("addresses", "is_open"),
    [
        (["93.184.216.34"], True),
        (["2606:2800:220:1::1"], True),
        (["2606:2800:220:1::1", "93.184.216.34"], True),
        (["64:ff9b::93.184.216.34"], True),
        (["::ffff:93.184.216.34"], True),
        (["93.184.216.34", "10.0.0.1"], False),
        (["2606:2800:220:1::1", "::1"], False),
        (["93.184.216.34", "fe80::1%eth0"], False),
    ],
)
async def test_every_address_of_a_host_is_checked(addresses: list[str], *, is_open: bool) -> None:
    guard = TargetGuard(CLOSED, resolve=lead_to(*addresses))
    if is_open:
        target = await guard.resolve_target("https://hooks.example.org/")
        assert target.addresses == tuple(addresses)
    else:
        with pytest.raises(TargetForbidden):
            await guard.resolve_target("https://hooks.example.org/")


@each_row(
    ("url", "reason"),
    [
        ("http://hooks.example.org/", "webhooks.allow-http"),
        ("ftp://hooks.example.org/", "begin with https://"),
        ("file:///etc/passwd", "begin with https://"),
        ("hooks.example.org", "begin with https://"),
        ("", "begin with https://"),
        ("https://user:secret@hooks.example.org/", "user or password"),
        ("https://@hooks.example.org/", "user or password"),
        ("https:///secret", "no valid host"),
        ("https://:443/secret", "no valid host"),
        ("https://a..b/secret", "not a valid name"),
        (f"https://{'a' * 64}.example.org/secret", "not a valid name"),
        ("https://[fe80::1%25eth0]/secret", "no valid host"),
        ("https://[::1/secret", "not a URL"),
        ("https://hooks.example.org:0/secret", "port 0"),
        ("https://hooks.example.org:99999/secret", "not a URL"),
        ("https://hooks.example.org:x/secret", "not a URL"),
        ("https://hooks.example.org/secret\r\nX: y", "cannot have"),
        ("https://hooks.example.org\\@127.0.0.1/secret", "cannot have"),
        ("https://hooks.example.org /secret", "cannot have"),
        (f"https://hooks.example.org/{'secret' * MAX_URL_LENGTH}", "longer than 2000"),
    ],
)
async def test_a_url_that_is_no_target_is_refused_with_a_reason(url: str, reason: str) -> None:
    with pytest.raises(TargetForbidden) as raised:
        await TargetGuard(CLOSED, resolve=lead_to("93.184.216.34")).check(url)
    assert reason in str(raised.value)
    assert "secret" not in str(raised.value)


@each_row(
    ("url", "expected"),
    [
        (
            "https://hooks.example.org",
            ("https://93.184.216.34:443/", "hooks.example.org", "hooks.example.org"),
        ),
        (
            "https://Hooks.Example.org.:8443/a?b=c#d",
            ("https://93.184.216.34:8443/a?b=c", "hooks.example.org:8443", "hooks.example.org"),
        ),
        ("https://bücher.example/", ("https://93.184.216.34:443/", *["xn--bcher-kva.example"] * 2)),
    ],
)
async def test_a_target_is_an_address_and_the_name_of_the_host(url: str, expected: tuple[str, ...]) -> None:
    target = await TargetGuard(CLOSED, resolve=lead_to("93.184.216.34")).resolve_target(url)
    assert (target.build_url(target.addresses[0]), target.host_header, target.host) == expected
    assert "b=c" not in repr(target)


async def test_http_is_possible_if_it_is_allowed() -> None:
    guard = TargetGuard(WebhookSettings(allow_http=True), resolve=lead_to("93.184.216.34"))
    assert (await guard.resolve_target("http://hooks.example.org/")).port == 80


async def test_a_host_without_an_address_may_get_one_later() -> None:
    for resolve in (fail, lead_to()):
        guard = TargetGuard(CLOSED, resolve=resolve)
        await guard.check("https://hooks.example.org/")
        with pytest.raises(TargetUnresolved):
            await guard.resolve_target("https://hooks.example.org/")


async def test_a_name_that_becomes_private_is_refused_at_the_next_attempt() -> None:
    answers = [["93.184.216.34"], ["127.0.0.1"]]

    async def resolve(_host: str, _port: int) -> list[str]:
        return answers.pop(0)

    guard = TargetGuard(CLOSED, resolve=resolve)
    await guard.check("https://hooks.example.org/")
    with pytest.raises(TargetForbidden):
        await guard.resolve_target("https://hooks.example.org/")


async def test_the_system_resolves_names() -> None:
    assert "127.0.0.1" in await resolve_host("127.1", 443)
