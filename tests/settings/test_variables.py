"""Misspelled and foreign environment variables."""

from __future__ import annotations

import pytest

from meshfleet.errors.startup import WrongSettings
from meshfleet.settings import load_settings
from tests.row_tables import each_row


@pytest.mark.rule("rest-167")
@each_row(
    ("name", "suggestion"),
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
def test_a_misspelled_variable_is_reported(name: str, suggestion: str) -> None:
    with pytest.raises(WrongSettings) as raised:
        load_settings({}, {name: "postgresql://user:secret@host/name"})
    assert str(raised.value) == f"{name}: unknown setting; did you mean {suggestion}?"


@each_row(
    "name",
    ["MESHFLEET_ADMIN_PASSWORD", "MESHFLEET_PASSWORD", "MESHFLEET_FLAVOUR", "DATABASE"],
)
def test_foreign_variables_are_ignored(name: str) -> None:
    assert load_settings({}, {name: "anything"}) == load_settings({}, {})
