"""Broker addresses: every form of a URL, and no text form that shows credentials."""

from __future__ import annotations

import io
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console
from rich.pretty import Pretty, pretty_repr

from meshfleet.errors.protocol import MalformedAddress
from meshfleet.mqtt.client import BrokerAddress
from tests.row_tables import each_row

USER, PASSWORD = "theuser", "t0psecret"


def _with_credentials(address: BrokerAddress, user: str, password: str | None) -> BrokerAddress:
    return replace(address, user=user, password=password)


HOST = BrokerAddress(host="host", port=1883)


@each_row(
    ("url", "address"),
    [
        ("mqtt://host", BrokerAddress(host="host", port=1883)),
        ("mqtt://host/", BrokerAddress(host="host", port=1883)),
        ("mqtt://host:", BrokerAddress(host="host", port=1883)),
        ("MQTT://Host", BrokerAddress(host="host", port=1883)),
        ("mqtt://host:1", BrokerAddress(host="host", port=1)),
        ("mqtts://host", BrokerAddress(host="host", port=8883, tls=True)),
        ("mqtts://host:65535", BrokerAddress(host="host", port=65_535, tls=True)),
        ("ws://host", BrokerAddress(host="host", port=80, path="/mqtt")),
        ("ws://host/", BrokerAddress(host="host", port=80, path="/")),
        ("wss://host:9/a/b", BrokerAddress(host="host", port=9, tls=True, path="/a/b")),
        ("wss://host/mqtt", BrokerAddress(host="host", port=443, tls=True, path="/mqtt")),
        ("mqtt://192.0.2.1:1883", BrokerAddress(host="192.0.2.1", port=1883)),
        ("mqtt://[::1]", BrokerAddress(host="::1", port=1883)),
        ("mqtts://[2001:db8::1]:8884", BrokerAddress(host="2001:db8::1", port=8884, tls=True)),
        ("mqtt://u@host", _with_credentials(HOST, "u", None)),
        ("mqtt://u:@host", _with_credentials(HOST, "u", "")),
        ("mqtt://u:p@host", _with_credentials(HOST, "u", "p")),
        (
            "wss://u:p@[::1]:2/x",
            _with_credentials(BrokerAddress(host="::1", port=2, tls=True, path="/x"), "u", "p"),
        ),
        ("mqtt://a%40b:%3A%2F%3F%23%25@host", _with_credentials(HOST, "a@b", ":/?#%")),
        ("mqtt://%C3%A9:p%20q@host", _with_credentials(HOST, "é", "p q")),
        ("mqtt://u:a:b@host", _with_credentials(HOST, "u", "a:b")),
    ],
)
def test_a_valid_url_is_parsed(url: str, address: BrokerAddress) -> None:
    assert BrokerAddress.parse(url) == address


@pytest.mark.parametrize(
    "url",
    ["mqtt://host:1883", "mqtts://host:8883", "ws://host:80/mqtt", "wss://[2001:db8::1]:443/a/b"],
)
def test_the_text_of_an_address_is_its_url(url: str) -> None:
    assert str(BrokerAddress.parse(url)) == url
    assert repr(BrokerAddress.parse(url)) == f"BrokerAddress({url!r})"


@each_row(
    ("url", "reason"),
    [
        ("", "must begin with mqtt://"),
        ("host", "must begin with mqtt://"),
        ("localhost:1883", "must begin with mqtt://, mqtts://, ws:// or wss://"),
        ("192.0.2.1:1883", "must begin with mqtt://"),
        (f"{USER}:{PASSWORD}@host", "must begin with mqtt://"),
        (f"http://{USER}:{PASSWORD}@host", "must begin with mqtt://"),
        (f"tcp://{USER}:{PASSWORD}@host", "must begin with mqtt://"),
        (f"mqtt://{USER}:{PASSWORD}@", "names no host"),
        (f"mqtt://{USER}:{PASSWORD}@:1883", "names no host"),
        ("mqtt:host", "names no host"),
        (f"mqtt:{USER}:{PASSWORD}@host", "names no host"),
        (f"mqtt://{USER}:{PASSWORD}@host:0", "has port 0"),
        (f"mqtt://{USER}:{PASSWORD}@host:65536", "is not a URL such as mqtt://host:1883"),
        (f"mqtt://{USER}:{PASSWORD}@host:-1", "is not a URL"),
        (f"mqtt://{USER}:{PASSWORD}@host:mqtt", "is not a URL"),
        (f"mqtt://{USER}:{PASSWORD}@[::1", "is not a URL"),
        (f"mqtt://{USER}:{PASSWORD}@host/path", "has a path, which only ws:// and wss:// have"),
        (f"mqtt://{USER}:{PASSWORD}@host?x=1", "has a ? or #"),
        (f"wss://{USER}:{PASSWORD}@host/#x", "has a ? or #, which must be written as %3F or %23"),
        (f"mqtt://:{PASSWORD}@host", "has a password without a user name"),
        (f"mqtt://{USER}:{PASSWORD}/more@host", "is not a URL"),
        (f"mqtt://{USER}:12/{PASSWORD}@host", "has an @ after a /"),
        (f"mqtt://{USER}:{PASSWORD}#more@host", "is not a URL"),
        (f"mqtt://{USER}:12?{PASSWORD}@host", "has a ? or #"),
        (f"mqtt://{USER}:{PASSWORD}\t@host", "has a space or a control character"),
        (f"mqtt://{USER}:{PASSWORD} @host", "has a space or a control character"),
        (f"mqtt://{USER}:{PASSWORD}@host\n", "has a space or a control character"),
        (f"mqtt://{USER}:{PASSWORD}%FF@host", "is not a URL"),
    ],
)
def test_an_invalid_url_is_refused_without_repeating_it(url: str, reason: str) -> None:
    with pytest.raises(MalformedAddress) as caught:
        BrokerAddress.parse(url)
    assert str(caught.value).startswith(f"broker: {reason}")
    texts = "".join(traceback.format_exception_only(caught.value)) + repr(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    for secret in (USER, PASSWORD):
        assert secret not in texts


def test_a_slash_in_a_password_does_not_make_the_rest_of_it_a_path() -> None:
    with pytest.raises(MalformedAddress):
        BrokerAddress.parse(f"ws://{USER}:12/{PASSWORD}@host")


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
def test_an_invalid_host_name_is_refused(host: str) -> None:
    with pytest.raises(MalformedAddress):
        BrokerAddress.parse(f"mqtt://{host}")


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
def test_credentials_are_never_shown(scheme: str) -> None:
    address = BrokerAddress.parse(f"{scheme}://{USER}:{PASSWORD}@host")
    console = Console(file=io.StringIO(), width=200)
    console.print(address, Pretty(address), [address], {"broker": address})
    assert isinstance(console.file, io.StringIO)
    texts = [
        str(address),
        repr(address),
        f"{address}",
        f"{[address]}",
        pretty_repr(address),
        console.file.getvalue(),
    ]
    for text in texts:
        assert "host" in text
        assert USER not in text
        assert PASSWORD not in text


def test_credentials_are_those_of_the_url() -> None:
    address = BrokerAddress.parse(f"mqtt://{USER}:{PASSWORD}@host")
    assert (address.user, address.password) == (USER, PASSWORD)


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for url in (text, f"mqtt://{text}", f"ws://{text}/x"):
        try:
            address = BrokerAddress.parse(url)
        except MalformedAddress:
            continue
        assert address.host
        assert 0 < address.port < 0x1_0000
