"""Settings of another broker, in the place of the embedded one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import rich.pretty

from meshfleet.mqtt.client import BrokerAddress
from meshfleet.rest import BrokerPlace
from meshfleet.settings import Settings
from tests.row_tables import each_row
from tests.settings.from_flags import faults, settings

if TYPE_CHECKING:
    from collections.abc import Mapping

ELSEWHERE = "mqtt://fleet:hush-hush@192.0.2.1"

# --- Which broker ---


@each_row("flags", [{}, {"broker": "embedded"}])
def test_the_broker_is_the_embedded_one_unless_set(flags: dict[str, str]) -> None:
    assert settings(**flags) == Settings()
    assert settings(**flags).external_broker is None


@pytest.mark.rule("broker-21")
@each_row(
    ("text", "address"),
    [
        ("mqtt://host", BrokerAddress(host="host", port=1883)),
        ("mqtt://host/", BrokerAddress(host="host", port=1883)),
        ("mqtts://host", BrokerAddress(host="host", port=8883, tls=True)),
        ("mqtts://[2001:db8::1]:9", BrokerAddress(host="2001:db8::1", port=9, tls=True)),
        ("mqtt://fleet@host", BrokerAddress(host="host", port=1883, user="fleet")),
        ("mqtt://fleet:a%40b@host:7", BrokerAddress(host="host", port=7, user="fleet", password="a@b")),  # noqa: S106
    ],
)
def test_another_broker_is_read(text: str, address: BrokerAddress, folder: Path) -> None:
    (folder / "meshfleet.toml").unlink(missing_ok=True)  # of the row before
    assert settings(broker=text).external_broker == address
    assert settings({"MESHFLEET_BROKER": text}).external_broker == address
    (folder / "meshfleet.toml").write_text(f'broker = "{text}"')
    assert settings().external_broker == address


@each_row(
    "text",
    [
        "",
        "Embedded",
        "off",
        "host:1883",
        "fleet:hush-hush@host",
        "http://fleet:hush-hush@host",
        "ws://fleet:hush-hush@host/mqtt",
        "wss://fleet:hush-hush@host",
        "mqtt://fleet:hush-hush@",
        "mqtt://fleet:hush-hush@host:0",
        "mqtt://fleet:hush-hush@host:port",
        "mqtt://fleet:hush-hush#@host",
        "mqtt://fleet:hush-hush@host/path",
        "mqtt://fleet:hush hush@host",
        "mqtt://:hush-hush@host",
    ],
)
def test_what_is_no_broker_is_refused_and_never_repeated(text: str) -> None:
    ((field, message),) = faults(broker=text)
    assert field == "--broker"
    assert "hush" not in message


def test_no_password_of_a_broker_is_shown() -> None:
    told = settings(broker=ELSEWHERE)
    for shown in (str(told), repr(told), rich.pretty.pretty_repr(told)):
        assert "mqtt://192.0.2.1:1883" in shown
        assert "hush" not in shown


# --- What becomes of the embedded one ---


def test_with_another_broker_nobody_listens_here() -> None:
    for flags in ({}, {"mqtt": "a:1"}, {"mqtt": "off"}, {"mqtt_tls": "off", "mqtt_ws": "off"}):
        found = settings(broker=ELSEWHERE, **flags)
        assert (found.mqtt, found.mqtt_tls, found.mqtt_ws) == (None, None, None)


def test_listeners_that_somebody_wants_and_another_broker_are_a_mistake(pem: Mapping[str, str]) -> None:
    wanted = {"mqtt_tls": "a:1", "mqtt_ws": "b:2", "tls_cert": pem["cert"], "tls_key": pem["key"]}
    found = faults(broker=ELSEWHERE, **wanted)
    assert [(field, "is for the embedded broker" in message) for field, message in found] == [
        ("--mqtt-tls", True),
        ("--mqtt-ws", True),
    ]


@pytest.mark.rule("rest-168")
def test_gateways_are_told_the_other_broker_unless_it_has_a_public_address() -> None:
    assert settings(broker=ELSEWHERE).gateway_broker == BrokerPlace(host="192.0.2.1", port=1883, tls=False)
    assert settings(broker="mqtts://host").gateway_broker == BrokerPlace(host="host", port=8883, tls=True)
    public = settings(broker=ELSEWHERE, public_mqtt="mqtts://fleet.example.org").gateway_broker
    assert public == BrokerPlace(host="fleet.example.org", port=8883, tls=True)


# --- Who registers gateways ---


@pytest.mark.rule("rest-79")
@each_row(
    ("flags", "autoclaim"),
    [
        ({}, False),
        ({"gateways_autoclaim": "off"}, False),
        ({"broker": ELSEWHERE}, True),
        ({"broker": ELSEWHERE, "gateways_autoclaim": "on"}, True),
        ({"broker": ELSEWHERE, "gateways_autoclaim": "off"}, False),
    ],
)
def test_gateways_register_themselves_with_another_broker_unless_that_is_off(
    flags: dict[str, str], *, autoclaim: bool
) -> None:
    assert settings(**flags).autoclaim is autoclaim


@pytest.mark.rule("rest-79")
def test_on_the_embedded_broker_no_gateway_registers_itself() -> None:
    for flags in ({}, {"broker": "embedded"}, {"mqtt": "off"}):
        ((field, message),) = faults({"MESHFLEET_GATEWAYS_AUTOCLAIM": "on"}, **flags)
        assert (field, "log in" in message) == ("MESHFLEET_GATEWAYS_AUTOCLAIM", True)


@each_row(("value", "autoclaim"), [("true", True), ("false", False), ('"off"', False)])
def test_in_the_file_a_switch_may_be_a_truth_value(value: str, folder: Path, *, autoclaim: bool) -> None:
    (folder / "meshfleet.toml").write_text(f"[gateways]\nautoclaim = {value}")
    assert settings(broker=ELSEWHERE).autoclaim is autoclaim


@each_row("text", ["", "yes", "ON", "true", "1"])
def test_what_is_neither_on_nor_off_is_refused(text: str) -> None:
    assert [field for field, _ in faults(broker=ELSEWHERE, gateways_autoclaim=text)] == [
        "--gateways-autoclaim"
    ]


def test_of_a_broker_that_cannot_be_read_no_more_is_said_than_that() -> None:
    assert [field for field, _ in faults(broker="x", gateways_autoclaim="on")] == ["--broker"]


# --- Who vouches for it ---


def test_an_authority_of_our_own_vouches_for_a_broker_with_tls(pem: Mapping[str, str]) -> None:
    assert settings(broker="mqtts://host", broker_ca=pem["cert"]).broker_ca == Path(pem["cert"])


@each_row("flags", [{}, {"broker": "embedded"}, {"broker": "mqtt://host"}])
def test_without_tls_nobody_vouches_for_a_broker(flags: dict[str, str], pem: Mapping[str, str]) -> None:
    ((field, message),) = faults(broker_ca=pem["cert"], **flags)
    assert (field, message) == ("--broker-ca", "is only for a broker with mqtts://")


def test_who_vouches_must_be_in_the_file(folder: Path, pem: Mapping[str, str]) -> None:
    (folder / "empty").touch()
    for file in ("empty", pem["key"], "missing"):
        assert [field for field, _ in faults(broker="mqtts://host", broker_ca=file)] == ["--broker-ca"]
