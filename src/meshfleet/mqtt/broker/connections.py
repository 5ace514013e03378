"""Registry of MQTT client connections, with limits on connections and failed logins."""

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
"""Maximum networks whose failed logins are tracked; beyond that, the oldest networks are discarded."""


class _FailureBudget(NamedTuple):
    """Number of connections of a network that may still fail to log in, as of `updated_at`."""

    remaining: float
    updated_at: float


class FailedLoginLimiter:
    """Limits the connections of one network that end without a login, with a token bucket per network.

    Only failed logins empty the bucket: any number of clients with valid credentials behind one address can
    reconnect, while a flood of other clients is rejected before TLS and MQTT cost anything.
    """

    def __init__(self, rate: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._capacity = float(rate)
        self._failures: OrderedDict[str, _FailureBudget] = OrderedDict()

    def is_exceeded(self, address: str) -> bool:
        """Return whether too many connections from the network of an address failed to log in."""
        return self.count_remaining(address) < 1

    def count_remaining(self, address: str) -> float:
        """Return how many more connections from the network of an address may fail to log in now."""
        return self._count_remaining(to_network(address), self._clock()) if self._failures else self._capacity

    def record_failure(self, address: str) -> None:
        """Count a failed login for the network of an address."""
        network, now = to_network(address), self._clock()
        # Never below zero: a network that stops failing is served again at once.
        remaining = max(0.0, self._count_remaining(network, now) - 1)
        self._failures[network] = _FailureBudget(remaining, now)
        self._failures.move_to_end(network)
        if len(self._failures) > _MAX_TRACKED_NETWORKS:
            self._failures.popitem(last=False)

    def _count_remaining(self, network: str, now: float) -> float:
        budget = self._failures.get(network)
        if budget is None:
            return self._capacity
        return min(self._capacity, budget.remaining + (now - budget.updated_at) * self._rate)


class ConnectionRegistry:
    """Holds the client connections, and limits their number in total, per IP address and per account."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._all: set[ServerConnection] = set()
        self._by_address = Counter[str]()
        self._by_account: dict[str, set[ServerConnection]] = {}
        self._reserved = Counter[str]()
        """Number of connection slots reserved before a TLS or WebSocket handshake, by address."""
        self.failed_logins = FailedLoginLimiter(limits.failed_connections)
        self._pending_logins = Counter[str]()
        """Number of connections of this second that have neither logged in nor failed, by network."""
        self._waiting: dict[str, deque[asyncio.Future[bool]]] = {}
        """Futures of the connections that wait in `wait_for_login_turn`, by network."""
        # One log line per network and minute, and few in total: an attacker may use very many networks.
        self._network_log_limiter = LogLimiter()
        self._total_log_limiter = LogLimiter(lines=100)
        self.rejected_count = 0
        """Number of connections that were closed unread because a limit was reached."""

    def apply_limits(self, limits: BrokerLimits) -> None:
        """Change the limits. Present connections beyond a lower limit stay."""
        if limits.failed_connections != self._limits.failed_connections:
            self.failed_logins = FailedLoginLimiter(limits.failed_connections)
        self._limits = limits

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[ServerConnection]:
        return iter(list(self._all))

    def reserve_slot(self, address: str) -> bool:
        """Reserve a place for a connection before its TLS or WebSocket handshake.

        Return False if a limit of connections is reached.
        """
        if (reason := self._describe_exceeded_limit(address)) is not None:
            self.rejected_count += 1
            if (
                rejected := self._network_log_limiter.count(to_network(address))
            ) and self._total_log_limiter.count(None):
                _log.warning(
                    "connections from %s are closed unread, %d since the last such line: %s",
                    address,
                    rejected,
                    reason,
                )
            return False
        self._reserved[address] += 1
        return True

    def _describe_exceeded_limit(self, address: str) -> str | None:
        """Return why no further connection from an address is accepted, or None if no limit is reached."""
        limits, from_address = self._limits, self._by_address[address] + self._reserved[address]
        if self.failed_logins.is_exceeded(address):
            return f"too many failed to log in (limits.failed-connections is {limits.failed_connections})"
        if from_address >= limits.connections_per_address:
            return f"{from_address} are open from this address (limits.connections-per-address)"
        if len(self._all) + self.reserved_slots >= limits.connections:
            return f"{limits.connections} are open in total (limits.connections)"
        return None

    @property
    def reserved_slots(self) -> int:
        """Number of connections with a reserved slot, whose TLS or WebSocket handshake is in progress."""
        return self._reserved.total()

    def release_slot(self, address: str) -> None:
        """Release a connection slot that was reserved before a handshake."""
        self._reserved[address] -= 1
        if not self._reserved[address]:
            del self._reserved[address]

    def release_failed_slot(self, address: str) -> None:
        """Release a connection slot after a failed handshake, and count the connection as a failed login."""
        self.release_slot(address)
        self.count_failed_login(address)

    async def wait_for_login_turn(self, address: str) -> bool:
        """Wait while too many logins from the network of an address are pending.

        Return True when the connection may log in, and count its login as pending. Return False if too many
        logins from the network failed. So a flood of failing logins is stopped early, while clients with
        valid credentials log in as fast as their credentials are checked.
        """
        network = to_network(address)
        if self._pending_logins[network] + 1 <= self.failed_logins.count_remaining(address):
            self._pending_logins[network] += 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(network, deque()).append(turn)
        return await turn

    def count_failed_login(self, address: str) -> None:
        """Count a failed login for the network of an address. The login is then no longer pending."""
        self.failed_logins.record_failure(address)
        self._finish_pending_login(to_network(address))

    def reset_pending_logins(self) -> None:
        """Count no login as pending any more, and let waiting connections log in.

        Called every second, so that clients that never finish their login do not delay others.
        """
        self._pending_logins.clear()
        for network in list(self._waiting):
            self._release_waiting(network)

    def _finish_pending_login(self, network: str) -> None:
        """Count one pending login of a network less, and let waiting connections log in."""
        if self._pending_logins[network] > 0:
            self._pending_logins[network] -= 1
        self._release_waiting(network)

    def _release_waiting(self, network: str) -> None:
        """Let waiting connections of a network log in, or reject all of them if too many logins failed."""
        waiting, remaining = self._waiting.get(network), self.failed_logins.count_remaining(network)
        is_flood = remaining < 1
        while waiting and (is_flood or self._pending_logins[network] + 1 <= remaining):
            turn = waiting.popleft()
            if not turn.done():
                self._pending_logins[network] += not is_flood
                turn.set_result(not is_flood)
        if not waiting:
            self._waiting.pop(network, None)

    def add(self, connection: ServerConnection) -> bool:
        """Register a connection and release its reserved slot. Return False if a limit is reached."""
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
        """Register an authenticated connection for its account.

        Return False if the account has too many connections. The connection `replacing`, which is about to be
        closed, does not count.
        """
        account = connection.account
        connections = self._by_account.setdefault(str(account), set())
        limits = self._limits if account is None else account.adapt_limits(self._limits)
        if len(connections) - (replacing in connections) >= limits.connections_per_account:
            return False
        connections.add(connection)
        self._finish_pending_login(to_network(connection.address))
        return True

    @property
    def connected_accounts(self) -> KeysView[str]:
        """Accounts that have at least one MQTT connection."""
        return self._by_account.keys()

    def find_by_account(self, account: str) -> list[ServerConnection]:
        """Return the MQTT connections of an account."""
        return list(self._by_account.get(account, ()))

    def remove(self, connection: ServerConnection) -> None:
        """Remove a closed connection from the registry."""
        self._all.discard(connection)
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]
        account = str(connection.account)
        if connection in (connections := self._by_account.get(account, set())):
            connections.discard(connection)
        if not connections:
            self._by_account.pop(account, None)
