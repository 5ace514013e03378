"""Who may publish and read what: the table at the end, and nothing beyond it (broker-7 to broker-15).

A rule is written like a topic filter. Besides `+` and `#` a level can be `{me}`, the MAC of the gateway that
asks, or `{mac}`, any MAC. `{prefix}` stands for the topic prefix of the installation. Somebody may subscribe
to a filter when everything that it matches is covered by one rule.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from meshfleet.wire.rest import Role

if TYPE_CHECKING:
    from collections.abc import Sequence


class Kind(StrEnum):
    """What sort of account somebody comes with."""

    GATEWAY = "gateway"
    PERSON = "user"
    PROGRAM = "api-key"


class Account(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Whose connection it is."""

    kind: Kind
    name: str
    """Of a gateway, its MAC."""
    role: Role | None = None
    """None for gateways."""
    proof: bytes = b""
    """Differs once the credentials do, and is no secret."""

    @classmethod
    def parse(cls, text: str) -> Account:
        """An account by its text, of which nothing else is known."""
        kind, _, name = text.partition(" ")
        return cls(kind=Kind(kind), name=name)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Access:
    """What one account may do."""

    __slots__ = ("_publish", "filters", "fronts", "read_rules")

    def __init__(self, account: Account | None, prefix: str = "") -> None:
        self._publish = () if account is None else _rules(_PUBLISH, account, prefix)
        self.read_rules = () if account is None else _rules(_READ, account, prefix)
        """What the account may read. Two accesses with the same rules may read the same."""
        self.fronts = tuple(front for rule in self._publish if (front := _front(rule)) is not None)
        """How topics begin that may be published whatever follows: the quick way to know."""
        self.filters = tuple("/".join(rule).replace(_ANY_MAC, "+") for rule in self.read_rules)
        """The widest filters that the account may subscribe to."""

    def may_publish(self, topic: str) -> bool:
        """Whether a message may go there."""
        return topic.startswith(self.fronts) or any(_covers(rule, topic.split("/")) for rule in self._publish)

    def may_read(self, wanted: str) -> bool:
        """Whether everything that this filter matches may be read; a topic is a filter too."""
        levels = wanted.split("/")
        return any(_covers(rule, levels) for rule in self.read_rules)


_MAC = re.compile(r"[0-9a-f]{12}")
_ANY_MAC: Final = "{mac}"

_Levels = tuple[str, ...]


class _Rule(NamedTuple):
    who: Role | None
    """The least role; None for gateways."""
    pattern: str


def _rules(table: Sequence[_Rule], account: Account, prefix: str) -> tuple[_Levels, ...]:
    front = f"{prefix}/" if prefix else ""
    return tuple(
        tuple(rule.pattern.replace("{prefix}", front).replace("{me}", account.name).split("/"))
        for rule in table
        if _applies(rule.who, account)
    )


def _applies(who: Role | None, account: Account) -> bool:
    if account.kind is Kind.GATEWAY or account.role is None or who is None:
        return account.kind is Kind.GATEWAY and who is None
    return account.role.includes(who)


def _front(rule: _Levels) -> str | None:
    """The beginning that says it all, of a rule about everything below a place."""
    *place, any_level, rest = rule
    if any_level != "+" or rest != "#" or _ANY_MAC in place:
        return None
    return "/".join(place) + "/"


def _covers(rule: _Levels, wanted: Sequence[str]) -> bool:
    """Whether a rule, which ends in `#`, holds for all that a filter matches."""
    *place, _ = rule
    return len(wanted) >= len(place) and all(map(_covers_level, place, wanted))


def _covers_level(level: str, wanted: str) -> bool:
    if wanted == "#":
        return False
    if level == _ANY_MAC:
        return wanted == "+" or _MAC.fullmatch(wanted) is not None
    return level in {"+", wanted}


_PUBLISH: Final = (
    _Rule(None, "{prefix}mt/gateway/{me}/+/#"),  # subtrees: topics of later versions work (broker-9)
    _Rule(None, "meshtech/diagnostics/{me}/+/#"),  # which the prefix does not touch (broker-20)
    _Rule(Role.OPERATOR, "{prefix}mt/gateway/{mac}/request/{mac}/+/#"),
    _Rule(Role.OPERATOR, "{prefix}mt/gateways/request/{mac}/+/#"),
)

_READ: Final = (
    _Rule(None, "{prefix}mt/gateway/{me}/#"),
    _Rule(None, "{prefix}mt/gateways/#"),
    _Rule(None, "meshtech/diagnostics/{me}/#"),
    _Rule(Role.VIEWER, "{prefix}mt/gateway/{mac}/device/#"),
    _Rule(Role.VIEWER, "{prefix}mt/gateway/{mac}/response/#"),
)
"""Nobody reads requests but the gateway they address: they may carry keys (broker-14)."""

NOBODY: Final = Access(None)
"""What somebody may do who is not known yet."""
