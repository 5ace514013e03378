"""Settings of an external broker, used instead of the embedded one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import rich.pretty

from meshfleet.mqtt.client import BrokerAddress
from meshfleet.rest.gateways import BrokerEndpoint
from meshfleet.settings import Settings
from tests.row_tables import each_row
from tests.settings.from_flags import faults, settings

if TYPE_CHECKING:
    from collections.abc import Mapping

EXTERNAL = "mqtt://fleet:hush-hush@192.0.2.1"

# --- Address ---


@each_row("flags", [{}, {"broker": "embedded"}])
def test_the_broker_is_embedded_by_default(flags: dict[str, str]) -> None:
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
def test_an_external_broker_is_parsed(text: str, address: BrokerAddress, folder: Path) -> None:
    (folder / "meshfleet.toml").unlink(missing_ok=True)  # of the previous row
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
def test_an_invalid_broker_is_refused_and_never_repeated(text: str) -> None:
    ((field, message),) = faults(broker=text)
    assert field == "--broker"
    assert "hush" not in message


def test_the_password_of_a_broker_is_not_shown() -> None:
    found = settings(broker=EXTERNAL)
    for shown in (str(found), repr(found), rich.pretty.pretty_repr(found)):
        assert "mqtt://192.0.2.1:1883" in shown
        assert "hush" not in shown


# --- Settings of the embedded broker ---


def test_with_an_external_broker_there_are_no_listeners() -> None:
    for flags in ({}, {"mqtt": "a:1"}, {"mqtt": "off"}, {"mqtt_tls": "off", "mqtt_ws": "off"}):
        found = settings(broker=EXTERNAL, **flags)
        assert (found.mqtt, found.mqtt_tls, found.mqtt_ws) == (None, None, None)


def test_listeners_and_an_external_broker_exclude_each_other(pem: Mapping[str, str]) -> None:
    flags = {"mqtt_tls": "a:1", "mqtt_ws": "b:2", "tls_cert": pem["cert"], "tls_key": pem["key"]}
    found = faults(broker=EXTERNAL, **flags)
    assert [(field, "is for the embedded broker" in message) for field, message in found] == [
        ("--mqtt-tls", True),
        ("--mqtt-ws", True),
    ]


@pytest.mark.rule("rest-168")
def test_gateways_get_the_external_broker_unless_there_is_a_public_address() -> None:
    assert settings(broker=EXTERNAL).gateway_broker == BrokerEndpoint(host="192.0.2.1", port=1883, tls=False)
    assert settings(broker="mqtts://host").gateway_broker == BrokerEndpoint(host="host", port=8883, tls=True)
    public = settings(broker=EXTERNAL, public_mqtt="mqtts://fleet.example.org").gateway_broker
    assert public == BrokerEndpoint(host="fleet.example.org", port=8883, tls=True)


# --- Automatic claims ---


@pytest.mark.rule("rest-79")
@each_row(
    ("flags", "autoclaim"),
    [
        ({}, False),
        ({"gateways_autoclaim": "off"}, False),
        ({"broker": EXTERNAL}, True),
        ({"broker": EXTERNAL, "gateways_autoclaim": "on"}, True),
        ({"broker": EXTERNAL, "gateways_autoclaim": "off"}, False),
    ],
)
def test_gateways_are_claimed_automatically_on_an_external_broker_unless_switched_off(
    flags: dict[str, str], *, autoclaim: bool
) -> None:
    assert settings(**flags).autoclaim is autoclaim


@pytest.mark.rule("rest-79")
def test_gateways_cannot_be_claimed_automatically_on_the_embedded_broker() -> None:
    for flags in ({}, {"broker": "embedded"}, {"mqtt": "off"}):
        ((field, message),) = faults({"MESHFLEET_GATEWAYS_AUTOCLAIM": "on"}, **flags)
        assert (field, "must be claimed" in message) == ("MESHFLEET_GATEWAYS_AUTOCLAIM", True)


@each_row(("value", "autoclaim"), [("true", True), ("false", False), ('"off"', False)])
def test_a_switch_in_the_file_may_be_a_boolean(value: str, folder: Path, *, autoclaim: bool) -> None:
    (folder / "meshfleet.toml").write_text(f"[gateways]\nautoclaim = {value}")
    assert settings(broker=EXTERNAL).autoclaim is autoclaim


@each_row("text", ["", "yes", "ON", "true", "1"])
def test_an_invalid_switch_is_refused(text: str) -> None:
    assert [field for field, _ in faults(broker=EXTERNAL, gateways_autoclaim=text)] == [
        "--gateways-autoclaim"
    ]


def test_an_invalid_broker_causes_no_further_mistakes() -> None:
    assert [field for field, _ in faults(broker="x", gateways_autoclaim="on")] == ["--broker"]


# --- Certificate authorities ---


def test_certificate_authorities_can_be_given_for_a_broker_with_tls(pem: Mapping[str, str]) -> None:
    assert settings(broker="mqtts://host", broker_ca=pem["cert"]).broker_ca == Path(pem["cert"])


@each_row("flags", [{}, {"broker": "embedded"}, {"broker": "mqtt://host"}])
def test_certificate_authorities_need_a_broker_with_tls(
    flags: dict[str, str], pem: Mapping[str, str]
) -> None:
    ((field, message),) = faults(broker_ca=pem["cert"], **flags)
    assert (field, message) == ("--broker-ca", "is only for an external broker with mqtts://")


def test_the_file_of_authorities_must_contain_certificates(folder: Path, pem: Mapping[str, str]) -> None:
    (folder / "empty").touch()
    for file in ("empty", pem["key"], "missing"):
        assert [field for field, _ in faults(broker="mqtts://host", broker_ca=file)] == ["--broker-ca"]
