"""Authentication of MQTT clients, and the topics that each account may use (broker-7 to broker-15).

`Authenticator` is the interface through which the broker authenticates clients. `TopicPermissions` applies
the tables at the end of this module; everything that they do not list is forbidden.

A rule is written like a topic filter. Besides `+` and `#`, a level can be `{me}`, the MAC of the gateway
itself, or `{mac}`, any MAC. `{prefix}` stands for the topic prefix of the installation, `{discovery}` and
`{entities}` for the topics of Home Assistant. An account may subscribe to a filter if one rule covers every
topic that the filter matches.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec import Struct

from meshfleet.errors import FleetError
from meshfleet.rest.accounts import Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshfleet.mqtt.broker_limits import BrokerLimits
    from meshfleet.mqtt.codec.packets import Connect, ConnectReturnCode


class NotAdmitted(FleetError):
    """Raised when the broker refuses a CONNECT.

    `return_code` is sent to the client, `reason` goes to the log.
    """

    code, http = "not-admitted", 403

    def __init__(self, return_code: ConnectReturnCode, reason: str) -> None:
        super().__init__(return_code, reason)
        self.return_code = return_code
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Authenticator(Protocol):
    """Authenticates MQTT clients; implemented by the service."""

    async def authenticate(self, connect: Connect, address: str) -> Account:
        """Check the credentials of a CONNECT. Return the account, or raise `NotAdmitted`."""

    def on_access_denied(self, account: Account, address: str, action: str, topic: str) -> None:
        """Record that the rules forbade an account an action: `publish`, `subscribe` or `will` (message)."""


class AccountKind(StrEnum):
    """Kind of an account that MQTT clients log in with."""

    GATEWAY = "gateway"
    USER = "user"
    API_KEY = "api-key"
    HOME_ASSISTANT = "homeassistant"
    """API key for Home Assistant, which may use the topics of Home Assistant and no others."""


class Account(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Account with which an MQTT client logged in."""

    kind: AccountKind
    name: str
    """User name, name of an API key, or MAC of a gateway."""
    role: Role | None = None
    """Role of a user or API key; None for gateways."""
    credential_digest: bytes = b""
    """Digest that changes with the credentials and is not secret; empty if unknown."""

    def adapt_limits(self, limits: BrokerLimits) -> BrokerLimits:
        """Return the limits of a client of this account: Home Assistant has limits of its own (broker-33)."""
        return limits.for_home_assistant() if self.kind is AccountKind.HOME_ASSISTANT else limits

    @classmethod
    def parse(cls, text: str) -> Account:
        """Parse `KIND NAME`, the string form of an account. The result lacks role and credential digest."""
        kind, _, name = text.partition(" ")
        return cls(kind=AccountKind(kind), name=name)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class HomeAssistantTopics(NamedTuple):
    """Topics through which Home Assistant finds, shows and changes devices."""

    discovery_prefix: str = "homeassistant"
    entities: str = "meshfleet"
    """Prefix of the topics with states and commands of devices."""
    has_commands: bool = False
    """Whether Home Assistant may send commands to devices."""


_DEFAULT_TOPICS: Final = HomeAssistantTopics()


class TopicPermissions:
    """Topics that one account may publish to and read. If the account is None, all topics are forbidden."""

    __slots__ = (
        "_command_rules",
        "_fleet_topics",
        "_ignored_rules",
        "_publish_rules",
        "publish_prefixes",
        "read_rules",
        "widest_filters",
    )

    def __init__(
        self, account: Account | None, prefix: str = "", home_assistant: HomeAssistantTopics = _DEFAULT_TOPICS
    ) -> None:
        """`prefix` is the topic prefix of the installation."""
        command_rules = _COMMAND_RULES if home_assistant.has_commands else ()
        self._command_rules = _select_patterns(command_rules, account, prefix, home_assistant)
        self._publish_rules = (
            *_select_patterns(_PUBLISH_RULES, account, prefix, home_assistant),
            *self._command_rules,
        )
        self._ignored_rules = _select_patterns(_IGNORED_RULES, account, prefix, home_assistant)
        self.read_rules = _select_patterns(_READ_RULES, account, prefix, home_assistant)
        """Patterns of the topics that the account may read, each split into topic levels. Accounts with equal
        rules may read the same topics."""
        self.publish_prefixes = tuple(
            fixed for rule in self._publish_rules if (fixed := _find_fixed_prefix(rule)) is not None
        )
        """Topic prefixes below which the account may publish to every topic, for a fast check."""
        self.widest_filters = tuple("/".join(rule).replace(_ANY_MAC, "+") for rule in self.read_rules)
        """The widest topic filters that the account may subscribe to, for log lines."""
        self._fleet_topics = (
            _list_fleet_topics(prefix)
            if account is not None and account.kind is AccountKind.HOME_ASSISTANT
            else None
        )
        """Topics of the fleet, for an API key for Home Assistant; else None."""

    def may_publish(self, topic: str) -> bool:
        """Return whether the account may publish to a topic."""
        return topic.startswith(self.publish_prefixes) or any(
            _covers(rule, topic.split("/")) for rule in self._publish_rules
        )

    def may_read(self, topic_filter: str) -> bool:
        """Return whether the account may read every topic that a topic filter, or a plain topic, matches."""
        levels = topic_filter.split("/")
        return any(_covers(rule, levels) for rule in self.read_rules)

    def may_retain(self, topic: str) -> bool:
        """Return whether a message of the account may be retained. `topic` is one that it may publish to.

        A retained command would be carried out again at every start of the service (broker-32).
        """
        return not any(_covers(rule, topic.split("/")) for rule in self._command_rules)

    def ignores_publish(self, topic: str) -> bool:
        """Return whether messages to a forbidden topic are acknowledged and dropped (broker-31).

        Home Assistant clears the discovery message of a device that it removes. The service alone decides
        what is published there, and other clients are disconnected for such a message.
        """
        levels = topic.split("/")
        return any(_covers(rule, levels) for rule in self._ignored_rules)

    def is_expected_denial(self, topic_filter: str) -> bool:
        """Return whether a forbidden filter is normal for the account and needs no audit row (broker-34).

        Home Assistant subscribes to topics of other integrations by default.
        """
        levels = topic_filter.split("/")
        return self._fleet_topics is not None and not any(
            _may_match_below(levels, fleet) for fleet in self._fleet_topics
        )


_MAC = re.compile(r"[0-9a-f]{12}")
_ANY_MAC: Final = "{mac}"

_Levels = tuple[str, ...]


class _Rule(NamedTuple):
    kinds: frozenset[AccountKind]
    pattern: str
    least_role: Role = Role.VIEWER
    """Lowest role of a user or API key that the rule applies to; ignored for gateways."""

    def applies_to(self, account: Account) -> bool:
        """Return whether the rule holds for an account."""
        if account.kind not in self.kinds:
            return False
        if account.kind is AccountKind.GATEWAY:
            return True
        return account.role is not None and account.role.includes(self.least_role)


def _select_patterns(
    table: Sequence[_Rule], account: Account | None, prefix: str, home_assistant: HomeAssistantTopics
) -> tuple[_Levels, ...]:
    """Return the patterns of the rules that apply to an account, with its name and the prefixes filled in.

    Each pattern is split into topic levels.
    """
    if account is None:
        return ()
    values = {
        "{prefix}": f"{prefix}/" if prefix else "",
        "{me}": account.name,
        "{discovery}": home_assistant.discovery_prefix,
        "{entities}": home_assistant.entities,
    }
    rules = (_fill_in_pattern(rule.pattern, values) for rule in table if rule.applies_to(account))
    if account.kind is not AccountKind.HOME_ASSISTANT:
        return tuple(rules)
    # With a topic prefix such as `meshfleet`, requests would be below the topics of Home Assistant.
    fleet_topics = _list_fleet_topics(prefix)
    return tuple(rule for rule in rules if not any(_may_match_below(rule, each) for each in fleet_topics))


def _fill_in_pattern(pattern: str, values: Mapping[str, str]) -> _Levels:
    for name, value in values.items():
        pattern = pattern.replace(name, value)
    return tuple(pattern.split("/"))


def _list_fleet_topics(prefix: str) -> tuple[_Levels, ...]:
    """Return the parents of all topics of gateways, each split into topic levels."""
    return (*prefix.split("/"), "mt") if prefix else ("mt",), ("meshtech",)


def _may_match_below(filter_levels: Sequence[str], parent: _Levels) -> bool:
    """Return whether a topic filter may match topics below `parent`, or topics above it."""
    for filter_level, level in zip(filter_levels, parent, strict=False):
        if filter_level == "#":
            return True
        if filter_level not in {"+", level}:
            return False
    return True


def _find_fixed_prefix(rule: _Levels) -> str | None:
    """Return the topic prefix below which a rule allows every topic, or None if a prefix is not enough."""
    *parent, any_level, rest = rule
    if any_level != "+" or rest != "#" or _ANY_MAC in parent:
        return None
    return "/".join(parent) + "/"


def _covers(rule: _Levels, filter_levels: Sequence[str]) -> bool:
    """Return whether a rule covers every topic that a topic filter matches."""
    *parent, last = rule
    if last != "#":
        return len(filter_levels) == len(rule) and all(map(_covers_level, rule, filter_levels))
    return len(filter_levels) >= len(parent) and all(map(_covers_level, parent, filter_levels))


def _covers_level(rule_level: str, filter_level: str) -> bool:
    """Return whether one level of a rule covers everything that one level of a topic filter matches."""
    if filter_level == "#":
        return False
    if rule_level == _ANY_MAC:
        return filter_level == "+" or _MAC.fullmatch(filter_level) is not None
    return rule_level in {"+", filter_level}


_GATEWAYS: Final = frozenset({AccountKind.GATEWAY})
_USERS: Final = frozenset({AccountKind.USER, AccountKind.API_KEY})
_HOME_ASSISTANT: Final = frozenset({AccountKind.HOME_ASSISTANT})

_PUBLISH_RULES: Final = (
    _Rule(_GATEWAYS, "{prefix}mt/gateway/{me}/+/#"),  # whole subtree, for topics of later versions (broker-9)
    _Rule(_GATEWAYS, "meshtech/diagnostics/{me}/+/#"),  # never has the topic prefix (broker-20)
    _Rule(_USERS, "{prefix}mt/gateway/{mac}/request/{mac}/+/#", Role.OPERATOR),
    _Rule(_USERS, "{prefix}mt/gateways/request/{mac}/+/#", Role.OPERATOR),
    # Home Assistant says here whether it runs. The topic has a setting of its own there, with this default.
    _Rule(_HOME_ASSISTANT, "homeassistant/status"),
    _Rule(_HOME_ASSISTANT, "{discovery}/status"),
)

_COMMAND_RULES: Final = (_Rule(_HOME_ASSISTANT, "{entities}/{mac}/set/+", Role.OPERATOR),)
"""Topics to which an account may publish only if Home Assistant may send commands to devices."""

_IGNORED_RULES: Final = (
    _Rule(_HOME_ASSISTANT, "{discovery}/+/+/config"),
    _Rule(_HOME_ASSISTANT, "{discovery}/+/+/+/config"),
)
"""Forbidden topics to which an account publishes in normal use."""

_READ_RULES: Final = (
    _Rule(_GATEWAYS, "{prefix}mt/gateway/{me}/#"),
    _Rule(_GATEWAYS, "{prefix}mt/gateways/#"),
    _Rule(_GATEWAYS, "meshtech/diagnostics/{me}/#"),
    _Rule(_USERS, "{prefix}mt/gateway/{mac}/device/#"),
    _Rule(_USERS, "{prefix}mt/gateway/{mac}/response/#"),
    _Rule(_USERS, "{prefix}meshfleet/alarms/+"),
    _Rule(_HOME_ASSISTANT, "{discovery}/#"),
    _Rule(_HOME_ASSISTANT, "{entities}/#"),
)
"""Topics that accounts may read. Only the addressed gateway may read requests, which may carry keys
(broker-14)."""

NO_PERMISSIONS: Final = TopicPermissions(None)
"""Permissions of a connection that is not authenticated yet."""
