"""Who may publish and read what: the table at the end, and nothing beyond it (broker-7 to broker-15).

A rule is written like a topic filter. Besides `+` and `#` a level can be `{me}`, the MAC of the gateway that
asks, or `{mac}`, any MAC. `{prefix}` stands for the topic prefix of the installation. Somebody may subscribe
to a filter when everything that it matches is covered by one rule.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec import Struct

from meshfleet.errors import FleetError
from meshfleet.rest import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.mqtt.codec.packets import Connect, ConnectReturnCode


# Who decides about clients: the broker asks, and the rooms that know accounts answer.


class NotAdmitted(FleetError):
    """A client is not let in. `accept` is the return code that it gets."""

    code, http = "not-admitted", 403

    def __init__(self, return_code: ConnectReturnCode, reason: str) -> None:
        super().__init__(return_code, reason)
        self.return_code = return_code
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Authenticator(Protocol):
    """Knows accounts and their credentials."""

    async def authenticate(self, connect: Connect, address: str) -> Account:
        """Whose client this is; or raise `NotAdmitted`."""

    def on_access_denied(self, account: Account, address: str, action: str, topic: str) -> None:
        """Take note of somebody who wanted more than the rules allow."""


class AccountKind(StrEnum):
    """What sort of account somebody comes with."""

    GATEWAY = "gateway"
    USER = "user"
    API_KEY = "api-key"


class Account(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Whose connection it is."""

    kind: AccountKind
    name: str
    """Of a gateway, its MAC."""
    role: Role | None = None
    """None for gateways."""
    credential_digest: bytes = b""
    """Differs once the credentials do, and is no secret."""

    @classmethod
    def parse(cls, text: str) -> Account:
        """An account by its text, of which nothing else is known."""
        kind, _, name = text.partition(" ")
        return cls(kind=AccountKind(kind), name=name)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class TopicPermissions:
    """What one account may do."""

    __slots__ = ("_publish_rules", "publish_prefixes", "read_rules", "widest_filters")

    def __init__(self, account: Account | None, prefix: str = "") -> None:
        self._publish_rules = () if account is None else _rules_for(_PUBLISH_RULES, account, prefix)
        self.read_rules = () if account is None else _rules_for(_READ_RULES, account, prefix)
        """What the account may read. Two accesses with the same rules may read the same."""
        self.publish_prefixes = tuple(
            front for rule in self._publish_rules if (front := _fixed_prefix(rule)) is not None
        )
        """How topics begin that may be published whatever follows: the quick way to know."""
        self.widest_filters = tuple("/".join(rule).replace(_ANY_MAC, "+") for rule in self.read_rules)
        """The widest filters that the account may subscribe to."""

    def may_publish(self, topic: str) -> bool:
        """Whether a message may go there."""
        return topic.startswith(self.publish_prefixes) or any(
            _covers(rule, topic.split("/")) for rule in self._publish_rules
        )

    def may_read(self, topic_filter: str) -> bool:
        """Whether everything that this filter matches may be read; a topic is a filter too."""
        levels = topic_filter.split("/")
        return any(_covers(rule, levels) for rule in self.read_rules)


_MAC = re.compile(r"[0-9a-f]{12}")
_ANY_MAC: Final = "{mac}"

_Levels = tuple[str, ...]


class _Rule(NamedTuple):
    least_role: Role | None
    """The least role; None for gateways."""
    pattern: str


def _rules_for(table: Sequence[_Rule], account: Account, prefix: str) -> tuple[_Levels, ...]:
    front = f"{prefix}/" if prefix else ""
    return tuple(
        tuple(rule.pattern.replace("{prefix}", front).replace("{me}", account.name).split("/"))
        for rule in table
        if _applies(rule.least_role, account)
    )


def _applies(least_role: Role | None, account: Account) -> bool:
    if account.kind is AccountKind.GATEWAY or account.role is None or least_role is None:
        return account.kind is AccountKind.GATEWAY and least_role is None
    return account.role.includes(least_role)


def _fixed_prefix(rule: _Levels) -> str | None:
    """The beginning that says it all, of a rule about everything below a place."""
    *place, any_level, rest = rule
    if any_level != "+" or rest != "#" or _ANY_MAC in place:
        return None
    return "/".join(place) + "/"


def _covers(rule: _Levels, filter_levels: Sequence[str]) -> bool:
    """Whether a rule, which ends in `#`, holds for all that a filter matches."""
    *place, _ = rule
    return len(filter_levels) >= len(place) and all(map(_covers_level, place, filter_levels))


def _covers_level(level: str, filter_level: str) -> bool:
    if filter_level == "#":
        return False
    if level == _ANY_MAC:
        return filter_level == "+" or _MAC.fullmatch(filter_level) is not None
    return level in {"+", filter_level}


_PUBLISH_RULES: Final = (
    _Rule(None, "{prefix}mt/gateway/{me}/+/#"),  # subtrees: topics of later versions work (broker-9)
    _Rule(None, "meshtech/diagnostics/{me}/+/#"),  # which the prefix does not touch (broker-20)
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
"""Nobody reads requests but the gateway they address: they may carry keys (broker-14)."""

NO_PERMISSIONS: Final = TopicPermissions(None)
"""What somebody may do who is not known yet."""
