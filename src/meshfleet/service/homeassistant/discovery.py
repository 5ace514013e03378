"""Builds discovery messages for Home Assistant in both forms, without I/O (homeassistant-2, homeassistant-3).

In form `device`, one message describes a device with all its entities. In form `entity`, each entity has a
message of its own.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meshfleet.protocol.ids import to_device_id
from meshfleet.service.homeassistant.topics import format_node_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshfleet.protocol.ids import Mac
    from meshfleet.service.homeassistant.entities import DeviceDescription, Entity
    from meshfleet.service.homeassistant.topics import IntegrationTopics

_MANUFACTURER: Final = "Mesh Tech"
_encode = msgspec.json.Encoder().encode

_STATELESS: Final = {"button"}
"""Platforms of entities without a state."""


class DiscoveryMessage(NamedTuple):
    """Retained message that makes Home Assistant create, change or (if empty) remove entities."""

    topic: str
    payload: bytes


class DiscoveryOptions(NamedTuple):
    """Options of discovery messages that are the same for all devices."""

    topics: IntegrationTopics
    url: str
    """URL of the console, to which Home Assistant links."""
    form: str
    """Either `device` or `entity`."""


def build_messages(
    device: DeviceDescription, entities: Sequence[Entity], options: DiscoveryOptions
) -> list[DiscoveryMessage]:
    """Build the discovery messages of a device and its entities, in the form that `options` names."""
    if options.form == "device":
        return [build_device_message(device, entities, options)]
    return [_build_entity_message(device, each, options) for each in entities]


def build_device_message(
    device: DeviceDescription,
    entities: Sequence[Entity],
    options: DiscoveryOptions,
    *,
    removed: Mapping[str, str] | None = None,
) -> DiscoveryMessage:
    """Build the discovery message of a device in form `device`.

    `removed` maps the object id of each entity that Home Assistant must remove to the platform of the entity.
    """
    topics = options.topics
    details = _describe_device(device, options)
    if device.model != "0000":
        details["model_id"] = device.model
    components: dict[str, Any] = {
        object_id: {"platform": platform} for object_id, platform in (removed or {}).items()
    }
    for each in entities:
        components[each.object_id] = {
            "platform": each.platform,
            "unique_id": _format_unique_id(device.mac, each),
            **each.config,
        }
        if each.is_always_available:
            components[each.object_id]["availability"] = [{"topic": topics.status}]
    payload = {
        "device": details,
        "origin": _describe_origin(),
        "availability": _list_availability(device.mac, topics),
        "availability_mode": "all",
        "state_topic": topics.state(device.mac),
        "qos": 1,
        "components": components,
    }
    return DiscoveryMessage(topics.device_config(device.mac), _encode(payload))


def _build_entity_message(
    device: DeviceDescription, entity: Entity, options: DiscoveryOptions
) -> DiscoveryMessage:
    """Build the discovery message of an entity in form `entity`.

    The key `device` has no `model_id`, because old versions of Home Assistant refuse such entities.
    """
    topics = options.topics
    availability = (
        [{"topic": topics.status}] if entity.is_always_available else _list_availability(device.mac, topics)
    )
    payload: dict[str, Any] = {
        "unique_id": _format_unique_id(device.mac, entity),
        "device": _describe_device(device, options),
        "origin": _describe_origin(),
        "availability": availability,
        "availability_mode": "all",
        "qos": 1,
    }
    if entity.platform not in _STATELESS:
        payload["state_topic"] = topics.state(device.mac)
    payload |= entity.config
    topic = topics.entity_config(device.mac, entity.platform, entity.object_id)
    return DiscoveryMessage(topic, _encode(payload))


def _format_unique_id(mac: Mac, entity: Entity) -> str:
    return f"{format_node_id(mac)}_{entity.object_id}"


def _list_availability(mac: Mac, topics: IntegrationTopics) -> list[dict[str, str]]:
    """Return the value of the key `availability`: the topics of the service and of the device."""
    return [{"topic": topics.status}, {"topic": topics.availability(mac)}]


@cache
def _describe_origin() -> dict[str, str]:
    """Return the value of the key `origin`, the program that published a discovery message."""
    return {"name": "Meshfleet", "sw_version": version("meshfleet")}


def _describe_device(device: DeviceDescription, options: DiscoveryOptions) -> dict[str, Any]:
    """Return the value of the key `device`, with fields that every supported Home Assistant version knows."""
    mac = device.mac
    address = ":".join(mac[start : start + 2] for start in range(0, len(mac), 2)).upper()
    optional = {
        "sw_version": device.firmware,
        "hw_version": device.hardware,
        "suggested_area": device.area,
        "via_device": None if device.via is None else format_node_id(device.via),
    }
    return {
        "identifiers": [format_node_id(mac)],
        "connections": [["bluetooth", address]],
        "name": device.name,
        "manufacturer": _MANUFACTURER,
        "model": device.product or device.model,
        **{name: value for name, value in optional.items() if value is not None},
        "serial_number": mac,
        "configuration_url": f"{options.url}/devices/{to_device_id(mac)}",
    }


# --- Messages that are found at the broker ---


class _AvailabilityEntry(msgspec.Struct):
    """Entry of the key `availability`: a topic on which a device or service is `online` or `offline`."""

    topic: str


class _ComponentEntry(msgspec.Struct):
    """Entity in a discovery message of form `device`."""

    platform: str


class _DiscoveryOwnership(msgspec.Struct):
    """The keys of a discovery message that tell which service published it, and for which entities."""

    availability: list[_AvailabilityEntry]
    components: dict[str, _ComponentEntry] = {}
    """Entities by object id; empty in form `entity`."""


_decode_discovery = msgspec.json.Decoder(_DiscoveryOwnership).decode


def parse_entity_platforms(payload: bytes, topics: IntegrationTopics) -> dict[str, str] | None:
    """Return the platform of each entity in a discovery message of form `device`, by object id.

    Return an empty dict for form `entity`, and None if the message is malformed or of another service.
    """
    try:
        found = _decode_discovery(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if topics.status not in {each.topic for each in found.availability}:
        return None
    return {object_id: each.platform for object_id, each in found.components.items()}
