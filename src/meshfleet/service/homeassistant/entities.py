"""Lists the entities that Home Assistant shows for a device, without I/O (homeassistant-4).

Most entities come from the column `homeassistant` of the identifier table; a few describe the device itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from meshfleet.protocol.identifiers.homeassistant import EntityPlatform, WriteMode
from meshfleet.protocol.identifiers.layouts import EnumLayout, NumberLayout
from meshfleet.protocol.ids import Mac, ModelNumber

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from meshfleet.protocol.identifiers import IdentifierCatalogue, IdentifierDefinition
    from meshfleet.service.homeassistant.topics import IntegrationTopics

PRESS: Final = "PRESS"
"""Payload that Home Assistant sends when a user presses a button that writes no value."""
ON: Final = "ON"
OFF: Final = "OFF"

OTHER_OPTION: Final = "other"
"""Keyword for a number that has no keyword in the identifier table."""

RSSI: Final = "rssi"
FIRMWARE: Final = "firmware"
CONNECTIVITY: Final = "connectivity"
DEVICE_COUNT: Final = "devices"
REPORT_RATE: Final = "reports-per-minute"

_NO_MODEL: Final = ModelNumber("0000")
UNREPORTED: Final = {EntityPlatform.EVENT, EntityPlatform.BUTTON}
"""Platforms of identifiers that every product of Mesh Tech has, but that no device reports as a value."""


class DeviceDescription(Struct, frozen=True, kw_only=True):
    """Facts about a device in its discovery messages, which are published again if a fact changes."""

    mac: Mac
    name: str
    model: ModelNumber
    """Model number; `0000` if it is unknown."""
    product: str | None
    """Name of the product; None if the model is unknown."""
    firmware: str | None
    hardware: str | None
    area: str | None
    """Area of the home that is suggested to Home Assistant; None for no suggestion."""
    via: Mac | None
    """Gateway through which the device is connected; None for gateways, or if the gateway is not shown."""
    is_gateway: bool


class Entity(Struct, frozen=True):
    """Entity of Home Assistant: its platform, its object id, and the keys of its discovery message."""

    platform: str
    object_id: str
    config: dict[str, Any]
    is_always_available: bool = False
    """Whether the entity stays available while its device is disconnected."""


def list_entities(
    device: DeviceDescription,
    identifiers: Collection[str],
    catalogue: IdentifierCatalogue,
    topics: IntegrationTopics,
    *,
    with_commands: bool,
) -> list[Entity]:
    """List the entities of a device in a stable order. `identifiers` are those that the device has reported.

    Entities that write to the device are listed only `with_commands`.
    """
    entities: list[Entity] = []
    for definition in sorted(catalogue, key=lambda each: each.id):
        if is_shown(definition, device, identifiers):
            entities += _list_identifier_entities(definition, device, topics, with_commands=with_commands)
    return [*entities, *_list_device_entities(device)]


def is_shown(
    definition: IdentifierDefinition, device: DeviceDescription, identifiers: Collection[str]
) -> bool:
    """Return whether Home Assistant shows an identifier of a device that has reported `identifiers`.

    Events and buttons are also shown if the device has not reported them, provided that its model is known.
    """
    if definition.homeassistant is None:
        return False
    is_common = definition.homeassistant.platform in UNREPORTED and device.model != _NO_MODEL
    return is_common or definition.id in identifiers


def _list_identifier_entities(
    definition: IdentifierDefinition,
    device: DeviceDescription,
    topics: IntegrationTopics,
    *,
    with_commands: bool,
) -> Iterator[Entity]:
    """Yield the entity that shows an identifier and, with commands, the entities that write to the device."""
    entity = definition.homeassistant
    assert entity is not None  # noqa: S101 # checked by is_shown
    name, platform = definition.name, entity.platform
    command_topic = topics.command(device.mac, name)
    common = _build_common_keys(definition)
    if platform in {EntityPlatform.NUMBER, EntityPlatform.BUTTON} and not with_commands:
        return
    if platform is EntityPlatform.BUTTON:
        yield Entity(
            platform, definition.id, {**common, "command_topic": command_topic, "payload_press": PRESS}
        )
        return
    if platform is EntityPlatform.EVENT:
        own = {"state_topic": topics.event(device.mac, name), "event_types": [format_event_type(name)]}
        yield Entity(platform, definition.id, {**common, **own})
        return
    readable = {**common, "value_template": build_template(name)}
    if with_commands and entity.write is WriteMode.SWITCH:
        yield Entity("switch", f"{definition.id}-switch", {**readable, "command_topic": command_topic})
        return
    yield Entity(platform, definition.id, {**readable, **_build_platform_keys(definition, command_topic)})
    if with_commands and entity.write is WriteMode.CLEAR:
        keys = {
            "name": f"Clear {_format_name(name).lower()}",
            "command_topic": command_topic,
            "payload_press": OFF,
        }
        yield Entity("button", f"{definition.id}-clear", keys)


def _build_common_keys(definition: IdentifierDefinition) -> dict[str, Any]:
    """Return the keys that the discovery messages of entities of all platforms have."""
    entity = definition.homeassistant
    assert entity is not None  # noqa: S101 # checked by is_shown
    keys: dict[str, Any] = {"name": _format_name(definition.name)}
    if entity.device_class is not None:
        keys["device_class"] = entity.device_class
    if entity.category is not None:
        keys["entity_category"] = entity.category
    if not entity.is_enabled:
        keys["enabled_by_default"] = False
    return keys


def _build_platform_keys(definition: IdentifierDefinition, command_topic: str) -> dict[str, Any]:
    """Return the further keys in the discovery message of a sensor, or of a number that can be set."""
    entity = definition.homeassistant
    assert entity is not None  # noqa: S101 # checked by is_shown
    keys: dict[str, Any] = {}
    if entity.platform is EntityPlatform.SENSOR:
        if entity.state_class is not None:
            keys["state_class"] = entity.state_class
        if entity.precision is not None:
            keys["suggested_display_precision"] = entity.precision
        if entity.device_class == "enum":
            keys["options"] = list_options(definition)
    elif entity.platform is EntityPlatform.NUMBER and isinstance(definition.layout, NumberLayout):
        low, high = definition.layout.value_range
        keys |= {
            "command_topic": command_topic,
            "min": low,
            "max": high,
            "step": entity.step,
            "mode": "box",
        }
    if definition.unit and entity.platform in {EntityPlatform.SENSOR, EntityPlatform.NUMBER}:
        keys["unit_of_measurement"] = definition.unit
    return keys


def list_options(definition: IdentifierDefinition) -> list[str]:
    """List the keywords of an identifier whose values are shown as keywords; empty without keywords."""
    assert definition.homeassistant is not None  # noqa: S101 # checked by the callers
    if definition.homeassistant.options:
        return [*definition.homeassistant.options, OTHER_OPTION]
    return [*definition.layout.keywords] if isinstance(definition.layout, EnumLayout) else []


def _list_device_entities(device: DeviceDescription) -> Iterator[Entity]:
    """Yield the entities that come from no identifier, such as firmware and signal strength."""
    diagnostic = {"entity_category": "diagnostic"}
    if not device.is_gateway:
        keys = {
            "name": "Signal strength",
            "device_class": "signal_strength",
            "state_class": "measurement",
            "unit_of_measurement": "dBm",
            "enabled_by_default": False,
            "value_template": build_template(RSSI),
        }
        yield Entity("sensor", RSSI, diagnostic | keys)
    if device.firmware is not None:
        keys = {
            "name": "Firmware",
            "device_class": "firmware",
            "entity_category": "config",
            "value_template": "{{ value_json.firmware | tojson }}",
        }
        yield Entity("update", FIRMWARE, keys)
    if device.is_gateway:
        keys = {
            "name": "Connectivity",
            "device_class": "connectivity",
            "value_template": build_template(CONNECTIVITY),
        }
        yield Entity("binary_sensor", CONNECTIVITY, diagnostic | keys, is_always_available=True)
        for name, title, unit in (
            (DEVICE_COUNT, "Devices", "devices"),
            (REPORT_RATE, "Reports per minute", "reports/min"),
        ):
            keys = {
                "name": title,
                "state_class": "measurement",
                "unit_of_measurement": unit,
                "value_template": build_template(name),
            }
            yield Entity("sensor", name, diagnostic | keys)


def format_event_type(name: str) -> str:
    """Return the event type for an identifier, such as `watchdog-reset` for `watchdog-reset-event`."""
    return name.removesuffix("-event")


def build_template(name: str) -> str:
    """Return the Home Assistant template that reads the value with this name from the state message."""
    # Not `value_json.NAME`: that is a method if NAME is one of a dictionary, such as `clear` or `update`.
    return f"{{{{ value_json['{name}'] }}}}"


def _format_name(name: str) -> str:
    """Return the name of an identifier as text: `Battery level` for `battery-level`."""
    return name.replace("-", " ").capitalize()
