"""Topics of the integration with Home Assistant (homeassistant-1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors.protocol import MalformedMac
from meshfleet.protocol.ids import parse_mac

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac

_BIRTH_TOPIC: Final = "homeassistant/status"
"""Default topic on which Home Assistant publishes that it has started, with any discovery prefix."""


class Command(NamedTuple):
    """Command of Home Assistant, as parsed from its topic."""

    mac: Mac
    """Device to write to."""
    name: str
    """Name of the identifier to write."""


class IntegrationTopics(NamedTuple):
    """Topics below the discovery prefix of Home Assistant and below the topic of this service."""

    discovery_prefix: str
    root: str

    @property
    def status(self) -> str:
        """Topic of the state of the service: `online` or `offline`."""
        return f"{self.root}/status"

    @property
    def sync(self) -> str:
        """Topic of the message that the service publishes to itself, to find the end of retained messages."""
        return f"{self.root}/sync"

    @property
    def births(self) -> tuple[str, ...]:
        """Topics on which Home Assistant may publish that it has started."""
        return tuple(dict.fromkeys((_BIRTH_TOPIC, f"{self.discovery_prefix}/status")))

    @property
    def command_filter(self) -> str:
        """Topic filter that matches the commands to all devices."""
        return f"{self.root}/+/set/+"

    @property
    def published_filters(self) -> tuple[str, ...]:
        """Topic filters that match all retained device messages of the integration, and some of others."""
        return (
            f"{self.discovery_prefix}/device/+/config",
            f"{self.discovery_prefix}/+/+/+/config",
            f"{self.root}/+/availability",
            f"{self.root}/+/state",
        )

    def availability(self, mac: Mac) -> str:
        """Return the topic on which a device is `online` or `offline`."""
        return f"{self.root}/{mac}/availability"

    def state(self, mac: Mac) -> str:
        """Return the topic of the newest values of a device."""
        return f"{self.root}/{mac}/state"

    def event(self, mac: Mac, name: str) -> str:
        """Return the topic of an event of a device."""
        return f"{self.root}/{mac}/event/{name}"

    def command(self, mac: Mac, name: str) -> str:
        """Return the topic of commands that write an identifier of a device."""
        return f"{self.root}/{mac}/set/{name}"

    def device_config(self, mac: Mac) -> str:
        """Return the topic of the discovery message of a device in form `device`."""
        return f"{self.discovery_prefix}/device/{format_node_id(mac)}/config"

    def entity_config(self, mac: Mac, platform: str, object_id: str) -> str:
        """Return the topic of the discovery message of an entity in form `entity`."""
        return f"{self.discovery_prefix}/{platform}/{format_node_id(mac)}/{object_id}/config"

    def parse_command(self, topic: str) -> Command | None:
        """Parse the topic of a command; None if `topic` is another one."""
        match topic.removeprefix(f"{self.root}/").split("/"):
            case [mac, "set", name] if topic.startswith(f"{self.root}/") and (parsed := _find_mac(mac)):
                return Command(parsed, name)
        return None

    def find_published_device(self, topic: str) -> Mac | None:
        """Return the device that a discovery, state or availability topic names; None for other topics."""
        if topic.startswith(f"{self.discovery_prefix}/"):
            match topic.removeprefix(f"{self.discovery_prefix}/").split("/"):
                case ["device", node, "config"] | [_, node, _, "config"] if node.startswith(_NODE_START):
                    return _find_mac(node.removeprefix(_NODE_START))
        elif topic.startswith(f"{self.root}/"):
            match topic.removeprefix(f"{self.root}/").split("/"):
                case [mac, "availability" | "state"]:
                    return _find_mac(mac)
        return None

    def find_object_id(self, topic: str) -> str | None:
        """Return the object id in the topic of the discovery message of an entity; None for other topics."""
        match topic.removeprefix(f"{self.discovery_prefix}/").split("/"):
            case [_, node, object_id, "config"] if node.startswith(_NODE_START):
                return object_id
        return None


_NODE_START: Final = "meshfleet_"


def format_node_id(mac: Mac) -> str:
    """Return the id of a device in Home Assistant."""
    return f"{_NODE_START}{mac}"


def _find_mac(text: str) -> Mac | None:
    try:
        return parse_mac(text)
    except MalformedMac:
        return None
