"""Options that cannot work are refused at once."""

from __future__ import annotations

from typing import Any

import pytest

from meshfleet.mqtt.client import MqttOptions


@pytest.mark.parametrize(
    "setting",
    [{"window": 0}, {"backlog": 0}, {"max_packet_bytes": -1}, {"timeout": 0.0}, {"ping_interval": 0.0}],
)
def test_options_that_must_be_positive_refuse_zero_and_less(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        MqttOptions(**setting)
