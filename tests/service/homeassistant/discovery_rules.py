"""Rules of Home Assistant for discovery messages, written from its published schemas.

They check messages, and expand a message of form `device` to messages of form `entity`.
"""

from __future__ import annotations

import json
import re
from typing import Any

_OBJECT_ID = re.compile(r"[a-zA-Z0-9_-]+")
_URL = re.compile(r"https?://\S+")

_DEVICE_KEYS = {
    *("identifiers", "connections", "manufacturer", "model", "name", "hw_version", "serial_number"),
    *("sw_version", "via_device", "suggested_area", "configuration_url"),
}
"""Keys of `device` that Home Assistant 2024.3 knows; it refuses an entity with any other."""
_SHARED_KEYS = {"availability", "availability_mode", "state_topic", "command_topic", "qos", "encoding"}
"""Keys that the entities of a message of form `device` inherit."""
_COMMON_KEYS = {"unique_id", "name", "device_class", "entity_category", "enabled_by_default", "availability"}
_PLATFORM_KEYS = {
    "sensor": {
        *("value_template", "state_class", "unit_of_measurement", "suggested_display_precision", "options")
    },
    "binary_sensor": {"value_template"},
    "switch": {"value_template", "command_topic"},
    "number": {"value_template", "command_topic", "min", "max", "step", "mode", "unit_of_measurement"},
    "button": {"command_topic", "payload_press"},
    "event": {"state_topic", "event_types"},
    "update": {"value_template"},
}
_REQUIRED = {
    "switch": {"command_topic"},
    "number": {"command_topic"},
    "button": {"command_topic"},
    "event": {"state_topic", "event_types"},
}
_STATELESS = {"button"}


def check_device_message(payload: bytes) -> dict[str, Any]:
    """Check a message of form `device`, and return it."""
    message: dict[str, Any] = json.loads(payload)
    assert message.keys() <= {"device", "origin", "components", *_SHARED_KEYS}, message.keys()
    assert {"device", "origin", "components"} <= message.keys()
    _check_device(message["device"], {*_DEVICE_KEYS, "model_id"})
    _check_origin(message["origin"])
    components = message["components"]
    unique_ids = [each["unique_id"] for each in components.values() if each.keys() != {"platform"}]
    assert len(set(unique_ids)) == len(unique_ids)
    for object_id, component in components.items():
        assert _OBJECT_ID.fullmatch(object_id), object_id
        if component.keys() != {"platform"}:  # else its removal
            _check_entity(component["platform"], component.keys() - {"platform"}, component)
    return message


def check_entity_message(topic: str, payload: bytes, prefix: str = "homeassistant") -> dict[str, Any]:
    """Check a message of form `entity`, and return it."""
    found = re.fullmatch(rf"{prefix}/(\w+)/([a-zA-Z0-9_-]+)/([a-zA-Z0-9_-]+)/config", topic)
    assert found is not None, topic
    message: dict[str, Any] = json.loads(payload)
    _check_device(message["device"], _DEVICE_KEYS)
    _check_origin(message["origin"])
    own = message.keys() - {"device", "origin"} - _SHARED_KEYS
    _check_entity(found[1], own | (message.keys() & _PLATFORM_KEYS[found[1]]), message)
    assert found[1] in _STATELESS or "state_topic" in message
    return message


def expand_device_message(payload: bytes, prefix: str = "homeassistant") -> dict[str, dict[str, Any]]:
    """Return the entity messages that a device message stands for, by topic."""
    message = json.loads(payload)
    (node,) = message["device"]["identifiers"]
    expanded: dict[str, dict[str, Any]] = {}
    for object_id, component in message["components"].items():
        shared = {key: value for key, value in message.items() if key in _SHARED_KEYS}
        own = {key: value for key, value in component.items() if key != "platform"}
        device = {key: value for key, value in message["device"].items() if key != "model_id"}
        entity = {**shared, **own, "device": device, "origin": message["origin"]}
        if component["platform"] in _STATELESS:
            entity.pop("state_topic", None)
        expanded[f"{prefix}/{component['platform']}/{node}/{object_id}/config"] = entity
    return expanded


def _check_device(device: dict[str, Any], allowed: set[str]) -> None:
    assert device.keys() <= allowed, device.keys() - allowed
    assert device["identifiers"]
    assert all(isinstance(each, list) and len(each) == 2 for each in device["connections"])
    assert _URL.fullmatch(device["configuration_url"])
    assert all(value for value in device.values())


def _check_origin(origin: dict[str, Any]) -> None:
    assert origin["name"]
    assert origin.keys() <= {"name", "sw_version", "support_url"}


def _check_entity(platform: str, keys: Any, entity: dict[str, Any]) -> None:
    allowed = _COMMON_KEYS | _PLATFORM_KEYS[platform]
    assert set(keys) <= allowed, (platform, set(keys) - allowed)
    assert {"unique_id", "name"} | _REQUIRED.get(platform, set()) <= set(keys)
    if entity.get("device_class") == "enum":
        assert entity["options"]
        assert not {"state_class", "unit_of_measurement"} & set(keys)
    assert entity.get("state_class") in {None, "measurement", "total", "total_increasing"}
    assert entity.get("entity_category") in {None, "diagnostic", "config"}
    if platform in {"sensor", "binary_sensor"}:  # Home Assistant refuses these with the category config
        assert entity.get("entity_category") != "config"
