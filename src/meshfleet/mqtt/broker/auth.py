"""Authentication of MQTT clients, and the topics that each account may use (broker-7 to broker-15).

`Authenticator` is the interface through which the broker authenticates clients. `TopicPermissions` applies
the two tables at the end of this module; everything that they do not list is forbidden.

A rule is written like a topic filter. Besides `+` and `#`, a level can be `{me}`, the MAC of the gateway
itself, or `{mac}`, any MAC. `{prefix}` stands for the topic prefix of the installation. An account may
subscribe to a filter if one rule covers every topic that the filter matches.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec import Struct

from meshfleet.errors import FleetError
from meshfleet.rest.accounts import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

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


class Account(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Account with which an MQTT client logged in."""

    kind: AccountKind
    name: str
    """User name, name of an API key, or MAC of a gateway."""
    role: Role | None = None
    """Role of a user or API key; None for gateways."""
    credential_digest: bytes = b""
    """Digest that changes with the credentials and is not secret; empty if unknown."""

    @classmethod
    def parse(cls, text: str) -> Account:
        """Parse `KIND NAME`, the string form of an account. The result lacks role and credential digest."""
        kind, _, name = text.partition(" ")
        return cls(kind=AccountKind(kind), name=name)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class TopicPermissions:
    """Topics that one account may publish to and read. If the account is None, all topics are forbidden."""

    __slots__ = ("_publish_rules", "publish_prefixes", "read_rules", "widest_filters")

    def __init__(self, account: Account | None, prefix: str = "") -> None:
        self._publish_rules = () if account is None else _select_patterns(_PUBLISH_RULES, account, prefix)
        self.read_rules = () if account is None else _select_patterns(_READ_RULES, account, prefix)
        """Patterns of the topics that the account may read, each split into topic levels. Accounts with equal
        rules may read the same topics."""
        self.publish_prefixes = tuple(
            fixed for rule in self._publish_rules if (fixed := _find_fixed_prefix(rule)) is not None
        )
        """Topic prefixes below which the account may publish to every topic, for a fast check."""
        self.widest_filters = tuple("/".join(rule).replace(_ANY_MAC, "+") for rule in self.read_rules)
        """The widest topic filters that the account may subscribe to, for log lines."""

    def may_publish(self, topic: str) -> bool:
        """Return whether the account may publish to a topic."""
        return topic.startswith(self.publish_prefixes) or any(
            _covers(rule, topic.split("/")) for rule in self._publish_rules
        )

    def may_read(self, topic_filter: str) -> bool:
        """Return whether the account may read every topic that a topic filter, or a plain topic, matches."""
        levels = topic_filter.split("/")
        return any(_covers(rule, levels) for rule in self.read_rules)


_MAC = re.compile(r"[0-9a-f]{12}")
_ANY_MAC: Final = "{mac}"

_Levels = tuple[str, ...]


class _Rule(NamedTuple):
    """Rule that allows the accounts with a role to use the topics that match a pattern."""

    least_role: Role | None
    """Lowest role of a user or API key that the rule applies to; None for a rule for gateways."""
    pattern: str


def _select_patterns(table: Sequence[_Rule], account: Account, prefix: str) -> tuple[_Levels, ...]:
    """Return the patterns of the rules that apply to an account, with its name and the prefix filled in.

    Each pattern is split into topic levels.
    """
    topic_start = f"{prefix}/" if prefix else ""
    return tuple(
        tuple(rule.pattern.replace("{prefix}", topic_start).replace("{me}", account.name).split("/"))
        for rule in table
        if _rule_applies(rule.least_role, account)
    )


def _rule_applies(least_role: Role | None, account: Account) -> bool:
    """Return whether a rule with this `least_role` applies to an account."""
    if account.kind is AccountKind.GATEWAY or account.role is None or least_role is None:
        return account.kind is AccountKind.GATEWAY and least_role is None
    return account.role.includes(least_role)


def _find_fixed_prefix(rule: _Levels) -> str | None:
    """Return the topic prefix below which a rule allows every topic, or None if a prefix is not enough."""
    *parent, any_level, rest = rule
    if any_level != "+" or rest != "#" or _ANY_MAC in parent:
        return None
    return "/".join(parent) + "/"


def _covers(rule: _Levels, filter_levels: Sequence[str]) -> bool:
    """Return whether a rule, which ends in `#`, covers every topic that a topic filter matches."""
    *parent, _ = rule
    return len(filter_levels) >= len(parent) and all(map(_covers_level, parent, filter_levels))


def _covers_level(rule_level: str, filter_level: str) -> bool:
    """Return whether one level of a rule covers everything that one level of a topic filter matches."""
    if filter_level == "#":
        return False
    if rule_level == _ANY_MAC:
        return filter_level == "+" or _MAC.fullmatch(filter_level) is not None
    return rule_level in {"+", filter_level}


_PUBLISH_RULES: Final = (
    _Rule(None, "{prefix}mt/gateway/{me}/+/#"),  # whole subtree, for topics of later versions (broker-9)
    _Rule(None, "meshtech/diagnostics/{me}/+/#"),  # never has the topic prefix (broker-20)
    _Rule(Role.OPERATOR, "{prefix}mt/gateway/{mac}/request/{mac}/+/#"),
    _Rule(Role.OPERATOR, "{prefix}mt/gateways/request/{mac}/+/#"),
)

_READ_RULES: Final = (
    _Rule(None, "{prefix}mt/gateway/{me}/#"),
    _Rule(None, "{prefix}mt/gateways/#"),
    _Rule(None, "meshtech/diagnostics/{me}/#"),
    _Rule(Role.VIEWER, "{prefix}mt/gateway/{mac}/device/#"),
    _Rule(Role.VIEWER, "{prefix}mt/gateway/{mac}/response/#"),
)
"""Topics that accounts may read. Only the addressed gateway may read requests, which may carry keys
(broker-14)."""

NO_PERMISSIONS: Final = TopicPermissions(None)
"""Permissions of a connection that is not authenticated yet."""
