"""Who is connected, and whether there is room for one more."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.ip_networks import to_network
from meshfleet.mqtt.broker.log_limiter import LogLimiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, KeysView

    from meshfleet.mqtt.broker.connection import ServerConnection
    from meshfleet.mqtt.broker_limits import BrokerLimits
_log = logging.getLogger(__name__)

_MAX_TRACKED_NETWORKS: Final = 10_000
"""Networks with failures; of more the oldest are forgotten."""


class _FailureBudget(NamedTuple):
    """How many connections of a network may still fail, at a time."""

    remaining: float
    updated_at: float


class FailedLoginLimiter:
    """Limits the connections of one network that end without a login.

    A token bucket that only failures empty: any number of clients with valid credentials behind one address
    come back unhindered, while a flood without them is closed before TLS and MQTT cost anything.
    """

    def __init__(self, rate: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._capacity = float(rate)
        self._failures: OrderedDict[str, _FailureBudget] = OrderedDict()

    def is_exceeded(self, address: str) -> bool:
        """Whether too many connections from the network of an address have failed."""
        return self.remaining(address) < 1

    def remaining(self, address: str) -> float:
        """Return how many connections from the network of an address may still fail."""
        return self._remaining(to_network(address), self._clock()) if self._failures else self._capacity

    def record_failure(self, address: str) -> None:
        """Count a connection that ended without a login."""
        network, now = to_network(address), self._clock()
        # Never below zero: who stops is served again at once.
        left = max(0.0, self._remaining(network, now) - 1)
        self._failures[network] = _FailureBudget(left, now)
        self._failures.move_to_end(network)
        if len(self._failures) > _MAX_TRACKED_NETWORKS:
            self._failures.popitem(last=False)

    def _remaining(self, network: str, now: float) -> float:
        known = self._failures.get(network)
        return (
            self._capacity
            if known is None
            else min(self._capacity, known.remaining + (now - known.updated_at) * self._rate)
        )


class ConnectionRegistry:
    """Counts connections: all, by address, and by account."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._all: set[ServerConnection] = set()
        self._by_address = Counter[str]()
        self._by_account: dict[str, set[ServerConnection]] = {}
        self._reserved = Counter[str]()
        """Connections that are not known yet, by address: they have more to do before MQTT begins."""
        self.failed_logins = FailedLoginLimiter(limits.failed_connections)
        self._pending_logins = Counter[str]()
        """Connections of this second that have neither logged in nor failed, by network."""
        self._waiting: dict[str, deque[asyncio.Future[bool]]] = {}
        """Accepted connections that wait for those before them, by network."""
        # A line for each network and minute, but few for all: a client may have very many networks.
        self._network_log_limiter = LogLimiter()
        self._total_log_limiter = LogLimiter(lines=100)
        self.rejected_count = 0
        """Connections that were closed unread, because a limit was reached."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[ServerConnection]:
        return iter(list(self._all))

    def reserve_slot(self, address: str) -> bool:
        """Reserve a slot before the TLS or WebSocket handshake. Return False if a limit is reached."""
        if (full := self._exceeded_limit(address)) is not None:
            self.rejected_count += 1
            if (
                since := self._network_log_limiter.count(to_network(address))
            ) and self._total_log_limiter.count(None):
                _log.warning(
                    "connections from %s are closed unread, %d since the last such line: %s",
                    address,
                    since,
                    full,
                )
            return False
        self._reserved[address] += 1
        return True

    def _exceeded_limit(self, address: str) -> str | None:
        """Return in words which limit leaves no room for a connection."""
        limits, here = self._limits, self._by_address[address] + self._reserved[address]
        if self.failed_logins.is_exceeded(address):
            return (
                f"too many of them did not log in (limits.failed-connections is {limits.failed_connections})"
            )
        if here >= limits.connections_per_address:
            return f"there are {here} (limits.connections-per-address)"
        if len(self._all) + self.reserved_slots >= limits.connections:
            return f"there are {limits.connections} in all (limits.connections)"
        return None

    @property
    def reserved_slots(self) -> int:
        """How many are at the entrances."""
        return self._reserved.total()

    def release_slot(self, address: str) -> None:
        """Somebody who was expected will never come in."""
        self._reserved[address] -= 1
        if not self._reserved[address]:
            del self._reserved[address]

    def release_failed_slot(self, address: str) -> None:
        """Give a reserved slot back, and count the connection as one that did not log in."""
        self.release_slot(address)
        self.count_failure(address)

    async def wait_for_login_turn(self, address: str) -> bool:
        """Wait until few connections of a network are under way. Return False if those before it failed.

        So a flood is known as one before all of it has cost a login, while clients that log in follow each
        other as fast as they are checked.
        """
        network = to_network(address)
        if self._pending_logins[network] + 1 <= self.failed_logins.remaining(address):
            self._pending_logins[network] += 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(network, deque()).append(turn)
        return await turn

    def count_failure(self, address: str) -> None:
        """Count a connection that ended without a login."""
        self.failed_logins.record_failure(address)
        self._finish_pending_login(to_network(address))

    def reset_pending_logins(self) -> None:
        """Stop counting connections that said nothing for a second: they must not keep others waiting."""
        self._pending_logins.clear()
        for network in list(self._waiting):
            self._release_waiting(network)

    def _finish_pending_login(self, network: str) -> None:
        if self._pending_logins[network] > 0:
            self._pending_logins[network] -= 1
        self._release_waiting(network)

    def _release_waiting(self, network: str) -> None:
        """Let held connections of a network go on, or end them all if too many have failed."""
        held, left = self._waiting.get(network), self.failed_logins.remaining(network)
        is_flood = left < 1
        while held and (is_flood or self._pending_logins[network] + 1 <= left):
            turn = held.popleft()
            if not turn.done():
                self._pending_logins[network] += not is_flood
                turn.set_result(not is_flood)
        if not held:
            self._waiting.pop(network, None)

    def add(self, connection: ServerConnection) -> bool:
        """Somebody connects, who is expected no longer; False: there is no room."""
        if self._reserved[connection.address]:
            self.release_slot(connection.address)
        limits = self._limits
        if len(self._all) >= limits.connections:
            return False
        if self._by_address[connection.address] >= limits.connections_per_address:
            return False
        self._all.add(connection)
        self._by_address[connection.address] += 1
        return True

    def assign_account(self, connection: ServerConnection, *, replacing: object = None) -> bool:
        """Its account is known now; False: that has too many already, besides one that is to end."""
        known = self._by_account.setdefault(str(connection.account), set())
        if len(known) - (replacing in known) >= self._limits.connections_per_account:
            return False
        known.add(connection)
        self._finish_pending_login(to_network(connection.address))
        return True

    @property
    def connected_accounts(self) -> KeysView[str]:
        """The accounts that are connected."""
        return self._by_account.keys()

    def of_account(self, account: str) -> list[ServerConnection]:
        """The connections of one account."""
        return list(self._by_account.get(account, ()))

    def remove(self, connection: ServerConnection) -> None:
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
