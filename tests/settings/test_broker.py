"""Settings of the embedded broker: listeners, public address, topic prefix and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.rest.gateways import BrokerEndpoint
from meshfleet.settings import ListenAddress
from tests.row_tables import each_row
from tests.settings.from_flags import faults, settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# --- Listeners ---


def test_mqtt_listens_on_localhost_by_default() -> None:
    found = settings()
    assert (found.mqtt, found.mqtt_tls, found.mqtt_ws) == (ListenAddress("127.0.0.1", 1883), None, None)


def test_a_listener_may_have_port_0(pem: Mapping[str, str]) -> None:
    found = settings(mqtt="a:0", mqtt_tls="b:0", mqtt_ws="c:0", tls_cert=pem["cert"], tls_key=pem["key"])
    assert (found.mqtt, found.mqtt_tls, found.mqtt_ws) == (
        ListenAddress("a", 0),
        ListenAddress("b", 0),
        ListenAddress("c", 0),
    )


@each_row("name", ["mqtt", "mqtt-tls", "mqtt-ws"])
def test_a_listener_of_the_file_can_be_switched_off(name: str, folder: Path) -> None:
    (folder / "meshfleet.toml").write_text(f'{name} = "a:1"')
    field = name.replace("-", "_")
    assert getattr(settings(**{field: "off"}), field) is None


@each_row("field", ["mqtt", "mqtt_tls", "mqtt_ws"])
@each_row("text", ["", "OFF", "off:", "none", "host", "host:65536", "mqtt://host:1"])
def test_an_invalid_listen_address_is_refused(field: str, text: str, pem: Mapping[str, str]) -> None:
    found = faults(tls_cert=pem["cert"], tls_key=pem["key"], **{field: text})
    assert [(each.field, "is not a host and a port" in each.message) for each in found] == [
        (f"--{field.replace('_', '-')}", True)
    ]


def test_http_cannot_be_switched_off() -> None:
    assert [fault.field for fault in faults(http="off")] == ["--http"]


# --- Address given to gateways ---


@pytest.mark.rule("rest-168")
def test_gateways_get_the_public_broker_else_the_tls_listener_else_the_plain_one(
    pem: Mapping[str, str],
) -> None:
    flags = {"mqtt": "192.0.2.1:1884"}
    assert settings(**flags).gateway_broker == BrokerEndpoint(host="192.0.2.1", port=1884, tls=False)
    flags |= {"mqtt_tls": "192.0.2.2:8884", "tls_cert": pem["cert"], "tls_key": pem["key"]}
    assert settings(**flags).gateway_broker == BrokerEndpoint(host="192.0.2.2", port=8884, tls=True)
    flags |= {"public_mqtt": "mqtt://fleet.example.org"}
    assert settings(**flags).gateway_broker == BrokerEndpoint(host="fleet.example.org", port=1883, tls=False)


@pytest.mark.rule("rest-168")
def test_without_a_listener_gateways_get_the_public_broker_or_none() -> None:
    assert settings(mqtt="off").gateway_broker is None
    assert settings(mqtt="off", mqtt_ws="192.0.2.1:80").gateway_broker is None
    public = settings(mqtt="off", public_mqtt="mqtts://fleet.example.org").gateway_broker
    assert public == BrokerEndpoint(host="fleet.example.org", port=8883, tls=True)


def test_a_public_broker_cannot_have_port_0() -> None:
    assert faults(public_mqtt="mqtt://host:0")[0].field == "--public-mqtt"


@each_row(
    ("text", "address"),
    [
        ("mqtt://host", BrokerEndpoint(host="host", port=1883, tls=False)),
        ("mqtt://host/", BrokerEndpoint(host="host", port=1883, tls=False)),
        ("mqtts://[2001:db8::1]:9", BrokerEndpoint(host="2001:db8::1", port=9, tls=True)),
    ],
)
def test_a_public_broker_is_parsed(text: str, address: BrokerEndpoint) -> None:
    assert settings(public_mqtt=text).public_mqtt == address


@each_row(
    "text",
    [
        "host:1883",
        "http://host",
        "mqtt://",
        "mqtt://:1",
        "mqtt://host:x",
        "mqtt://host/path",
        "mqtt://u:pw@h",
    ],
)
def test_an_invalid_public_broker_is_refused(text: str) -> None:
    assert [fault.field for fault in faults(public_mqtt=text)] == ["--public-mqtt"]


# --- Topics ---


@each_row("text", ["", "site", "site/building 7", "\u00e9tage"])
def test_a_topic_prefix_is_unchanged(text: str) -> None:
    assert settings(topic_prefix=text).topic_prefix == text


@each_row("text", ["/", "site/", "/site", "a//b", "a/+", "#", "$SYS", "a\nb", "x" * 129])
def test_an_invalid_topic_prefix_is_refused(text: str) -> None:
    ((field, message),) = faults({"MESHFLEET_TOPIC_PREFIX": text})
    assert field == "MESHFLEET_TOPIC_PREFIX"
    assert message.endswith(" is not a valid topic prefix")


# --- Limits ---


def test_limits_have_defaults() -> None:
    assert settings().limits == BrokerLimits(
        connections=10_000,
        connections_per_address=2000,
        connections_per_account=20,
        failed_connections=50,
        connect_seconds=10,
        packet_size=262_144,
        subscriptions=100,
        in_flight=100,
        queue_bytes=67_108_864,
        queues_bytes=268_435_456,
        publish_rate=2000,
        sessions_per_account=20,
        session_age=604_800,
        retained=10_000,
    )


def test_a_retired_limit_is_ignored_with_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "meshfleet.toml").write_text("[limits]\nqueue-length = 7\nretained = 3")
    assert settings({"MESHFLEET_LIMITS_QUEUE_LENGTH": "7"}).limits == BrokerLimits(retained=3)
    lines = sorted(each.getMessage() for each in caplog.records)
    assert [line.split(" is ignored: ")[0] for line in lines] == [
        "MESHFLEET_LIMITS_QUEUE_LENGTH",
        "meshfleet.toml: limits.queue-length",
    ]
    assert all("limits.queue-bytes" in line for line in lines)


_BOUNDS = {
    **dict.fromkeys(BrokerLimits.__struct_fields__, (1, 10**12)),
    "packet_size": (1024, 268_435_455),
    "in_flight": (1, 65_535),
}


@each_row("field", BrokerLimits.__struct_fields__)
def test_a_limit_is_a_whole_number_within_its_bounds(field: str, folder: Path) -> None:
    (folder / "meshfleet.toml").unlink(missing_ok=True)  # of the previous row
    least, most = _BOUNDS[field]
    for number in (least, most):
        assert getattr(settings(**{f"limits_{field}": str(number)}).limits, field) == number
    for wrong in (least - 1, most + 1):
        ((origin, message),) = faults(**{f"limits_{field}": str(wrong)})
        assert origin == f"--limits-{field.replace('_', '-')}"
        assert message == f"'{wrong}' is not a whole number from {least} to {most}"
    (folder / "meshfleet.toml").write_text(f"[limits]\n{field.replace('_', '-')} = {least}")
    assert getattr(settings().limits, field) == least


@each_row("text", ["", "many", "-1", "+1", "1.0", "1e3", "1_000", " 1", "1\n", "\u0661", "9" * 5000])
def test_a_limit_that_is_not_a_whole_number_is_refused(text: str) -> None:
    assert [fault.field for fault in faults(limits_retained=text)] == ["--limits-retained"]
