"""Who is connected, and whether there is room for one more."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, KeysView

    from meshfleet.broker.connection import Connection
    from meshfleet.settings import Limits


class Crowd:
    """Counts connections: all, by address, and by account."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._all: set[Connection] = set()
        self._by_address = Counter[str]()
        self._by_account: dict[str, set[Connection]] = {}
        self._expected = Counter[str]()
        """Connections that are not known yet, by address: they have more to do before MQTT begins."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._all))

    def expect(self, address: str) -> bool:
        """Somebody is at an entrance; False: there is no room."""
        limits, here = self._limits, self._by_address[address] + self._expected[address]
        if here >= limits.connections_per_address:
            return False
        if len(self._all) + self.expected >= limits.connections:
            return False
        self._expected[address] += 1
        return True

    @property
    def expected(self) -> int:
        """How many are at the entrances."""
        return self._expected.total()

    def miss(self, address: str) -> None:
        """Somebody who was expected will never come in."""
        self._expected[address] -= 1
        if not self._expected[address]:
            del self._expected[address]

    def enter(self, connection: Connection) -> bool:
        """Somebody connects, who is expected no longer; False: there is no room."""
        if self._expected[connection.address]:
            self.miss(connection.address)
        limits = self._limits
        if len(self._all) >= limits.connections:
            return False
        if self._by_address[connection.address] >= limits.connections_per_address:
            return False
        self._all.add(connection)
        self._by_address[connection.address] += 1
        return True

    def name(self, connection: Connection, *, instead_of: object = None) -> bool:
        """Its account is known now; False: that has too many already, besides one that is to end."""
        known = self._by_account.setdefault(str(connection.account), set())
        if len(known) - (instead_of in known) >= self._limits.connections_per_account:
            return False
        known.add(connection)
        return True

    @property
    def names(self) -> KeysView[str]:
        """The accounts that are connected."""
        return self._by_account.keys()

    def of(self, account: str) -> list[Connection]:
        """The connections of one account."""
        return list(self._by_account.get(account, ()))

    def leave(self, connection: Connection) -> None:
        """Somebody is gone."""
        self._all.discard(connection)
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]
        account = str(connection.account)
        if connection in (known := self._by_account.get(account, set())):
            known.discard(connection)
        if not known:
            self._by_account.pop(account, None)
