"""Topics of Home Assistant that would contain topics of gateways are refused."""

from __future__ import annotations

import pytest

from tests.row_tables import each_row
from tests.settings.from_flags import faults, settings


@pytest.mark.rule("broker-31")
@each_row(
    ("flags", "setting"),
    [
        ({"topic_prefix": "meshfleet"}, "homeassistant-broker"),
        ({"topic_prefix": "homeassistant/a"}, "homeassistant-broker"),
        ({"homeassistant_topic": "mt"}, "homeassistant-topic"),
        ({"homeassistant_topic": "mt/gateway"}, "homeassistant-topic"),
        ({"homeassistant_topic": "meshtech"}, "homeassistant-topic"),
        ({"topic_prefix": "site", "homeassistant_topic": "site"}, "homeassistant-topic"),
        ({"topic_prefix": "site", "homeassistant_topic": "site/mt/x"}, "homeassistant-topic"),
        ({"homeassistant_discovery_prefix": "mt"}, "homeassistant-discovery-prefix"),
    ],
)
def test_topics_above_or_below_those_of_gateways_are_refused(flags: dict[str, str], setting: str) -> None:
    ((field, message),) = faults(homeassistant_broker="embedded", **flags)
    assert field == f"--{setting}"
    assert "the topics of gateways are there" in message
    settings(**flags)  # without Home Assistant they are valid


@each_row(
    "flags",
    [
        {"topic_prefix": "site"},
        {"topic_prefix": "site", "homeassistant_topic": "mt"},
        {"topic_prefix": "site", "homeassistant_topic": "site/home"},
        {"homeassistant_topic": "mt2"},
        {"topic_prefix": "meshfleet2"},
    ],
)
def test_other_topics_are_accepted(flags: dict[str, str]) -> None:
    settings(homeassistant_broker="embedded", **flags)
