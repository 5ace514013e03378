"""Who is connected, and whether there is room for one more."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.broker.log_limit import LogLimit
from meshfleet.link.networks import network_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, KeysView

    from meshfleet.broker.connection import Connection
    from meshfleet.settings import Limits
_log = logging.getLogger(__name__)

_REMEMBERED: Final = 10_000
"""Networks with failures; of more the oldest are forgotten."""


class _Failures(NamedTuple):
    """How many connections of a network may still fail, at a time."""

    left: float
    at: float


class FailureRate:
    """Limits the connections of one network that end without a login.

    A token bucket that only failures empty: any number of clients with valid credentials behind one address
    come back unhindered, while a flood without them is closed before TLS and MQTT cost anything.
    """

    def __init__(self, rate: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._most = float(rate)
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def is_exceeded(self, address: str) -> bool:
        """Whether too many connections from the network of an address have failed."""
        return self.left(address) < 1

    def left(self, address: str) -> float:
        """Return how many connections from the network of an address may still fail."""
        return self._left(network_of(address), self._clock()) if self._failures else self._most

    def count(self, address: str) -> None:
        """Count a connection that ended without a login."""
        network, now = network_of(address), self._clock()
        # Never below zero: who stops is served again at once.
        left = max(0.0, self._left(network, now) - 1)
        self._failures[network] = _Failures(left, now)
        self._failures.move_to_end(network)
        if len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)

    def _left(self, network: str, now: float) -> float:
        known = self._failures.get(network)
        return self._most if known is None else min(self._most, known.left + (now - known.at) * self._rate)


class Crowd:
    """Counts connections: all, by address, and by account."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._all: set[Connection] = set()
        self._by_address = Counter[str]()
        self._by_account: dict[str, set[Connection]] = {}
        self._expected = Counter[str]()
        """Connections that are not known yet, by address: they have more to do before MQTT begins."""
        self.failures = FailureRate(limits.failed_connections)
        self._started = Counter[str]()
        """Connections of this second that have neither logged in nor failed, by network."""
        self._held: dict[str, deque[asyncio.Future[bool]]] = {}
        """Accepted connections that wait for those before them, by network."""
        # A line for each network and minute, but few for all: a client may have very many networks.
        self._network_lines = LogLimit()
        self._lines = LogLimit(lines=100)
        self.turned_away = 0
        """Connections that were closed unread, because a limit was reached."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._all))

    def expect(self, address: str) -> bool:
        """Reserve a slot before the TLS or WebSocket handshake. Return False if a limit is reached."""
        if (full := self._full(address)) is not None:
            self.turned_away += 1
            if (since := self._network_lines.count(network_of(address))) and self._lines.count(None):
                _log.warning(
                    "connections from %s are closed unread, %d since the last such line: %s",
                    address,
                    since,
                    full,
                )
            return False
        self._expected[address] += 1
        return True

    def _full(self, address: str) -> str | None:
        """Return in words which limit leaves no room for a connection."""
        limits, here = self._limits, self._by_address[address] + self._expected[address]
        if self.failures.is_exceeded(address):
            return (
                f"too many of them did not log in (limits.failed-connections is {limits.failed_connections})"
            )
        if here >= limits.connections_per_address:
            return f"there are {here} (limits.connections-per-address)"
        if len(self._all) + self.expected >= limits.connections:
            return f"there are {limits.connections} in all (limits.connections)"
        return None

    @property
    def expected(self) -> int:
        """How many are at the entrances."""
        return self._expected.total()

    def miss(self, address: str) -> None:
        """Somebody who was expected will never come in."""
        self._expected[address] -= 1
        if not self._expected[address]:
            del self._expected[address]

    def fail(self, address: str) -> None:
        """Give a reserved slot back, and count the connection as one that did not log in."""
        self.miss(address)
        self.count_failure(address)

    async def wait_turn(self, address: str) -> bool:
        """Wait until few connections of a network are under way. Return False if those before it failed.

        So a flood is known as one before all of it has cost a login, while clients that log in follow each
        other as fast as they are checked.
        """
        network = network_of(address)
        if self._started[network] + 1 <= self.failures.left(address):
            self._started[network] += 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._held.setdefault(network, deque()).append(turn)
        return await turn

    def count_failure(self, address: str) -> None:
        """Count a connection that ended without a login."""
        self.failures.count(address)
        self._resolve(network_of(address))

    def start_second(self) -> None:
        """Stop counting connections that said nothing for a second: they must not keep others waiting."""
        self._started.clear()
        for network in list(self._held):
            self._go_on(network)

    def _resolve(self, network: str) -> None:
        if self._started[network] > 0:
            self._started[network] -= 1
        self._go_on(network)

    def _go_on(self, network: str) -> None:
        """Let held connections of a network go on, or end them all if too many have failed."""
        held, left = self._held.get(network), self.failures.left(network)
        is_flood = left < 1
        while held and (is_flood or self._started[network] + 1 <= left):
            turn = held.popleft()
            if not turn.done():
                self._started[network] += not is_flood
                turn.set_result(not is_flood)
        if not held:
            self._held.pop(network, None)

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
        self._resolve(network_of(connection.address))
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
