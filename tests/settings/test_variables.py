"""Settings in the environment: what is nearly one of them was meant to be one."""

from __future__ import annotations

import pytest

from meshfleet.errors.startup import WrongSettings
from meshfleet.settings import load_settings
from tests.row_tables import each_row


@pytest.mark.rule("rest-167")
@each_row(
    ("name", "meant"),
    [
        ("MESHFLEET_DATBASE", "MESHFLEET_DATABASE"),
        ("MESHFLEET_TLS_CERTS", "MESHFLEET_TLS_CERT"),
        ("MESHFLEET_TRUSTED_PROXY", "MESHFLEET_TRUSTED_PROXIES"),
        ("MESHFLEET_MQTTTLS", "MESHFLEET_MQTT_TLS"),
        ("MESHFLEET_TOPICPREFIX", "MESHFLEET_TOPIC_PREFIX"),
        ("MESHFLEET_REQUEST_MAX_AGE", "MESHFLEET_REQUESTS_MAX_AGE"),
        ("MESHFLEET_BROKERS", "MESHFLEET_BROKER"),
        ("MESHFLEET_GATEWAY_AUTOCLAIM", "MESHFLEET_GATEWAYS_AUTOCLAIM"),
        ("MESHFLEET_LIMIT_PACKET_SIZE", "MESHFLEET_LIMITS_PACKET_SIZE"),
        ("MESHFLEET_LIMITS_QUEUE_BYTE", "MESHFLEET_LIMITS_QUEUE_BYTES"),
    ],
)
def test_a_misspelt_variable_is_told(name: str, meant: str) -> None:
    with pytest.raises(WrongSettings) as raised:
        load_settings({}, {name: "postgresql://somebody:secret@host/name"})
    assert str(raised.value) == f"{name}: there is no such setting; did you mean {meant}?"


@each_row(
    "name",
    ["MESHFLEET_ADMIN_PASSWORD", "MESHFLEET_PASSWORD", "MESHFLEET_FLAVOUR", "DATABASE"],
)
def test_variables_of_others_are_left_alone(name: str) -> None:
    assert load_settings({}, {name: "anything"}) == load_settings({}, {})
