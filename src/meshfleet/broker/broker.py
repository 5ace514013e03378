"""The broker as the service sees it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from meshfleet.broker.access import Account, Kind
from meshfleet.broker.connection import Connection
from meshfleet.broker.crowd import Crowd
from meshfleet.broker.desk import Desk
from meshfleet.broker.journal import Journal
from meshfleet.broker.lobby import Lobby
from meshfleet.broker.post import Listener, Post
from meshfleet.broker.requests import RequestRules
from meshfleet.broker.retained import Retained
from meshfleet.broker.sessions import Sessions
from meshfleet.broker.stock import Stock
from meshfleet.broker.written_times import WrittenTimes
from meshfleet.wire.mqtt.packets import Publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from meshfleet.broker.door import Door
    from meshfleet.broker.journal import Consumer
    from meshfleet.broker.store import Saved
    from meshfleet.errors import Trouble
    from meshfleet.settings import Limits

_SERVICE: Final = "service"
"""Who publishes without a connection."""

_READ: Final = 64 * 1024
"""Bytes that are read at once."""

_RETAINED: Final = 2 * 1024 * 1024
"""Bytes of all retained messages, which a subscription may bring at once; half a queue where that is less."""

ROUND_BYTES: Final = 8 * 1024 * 1024
"""Bytes in a round after which publishers wait for the next one."""

_GRACE: Final = 10.0
"""Seconds that the last round has when the broker stops."""


class Broker:
    """An MQTT 3.1.1 broker without listeners: whoever listens makes a `connection` for each client."""

    def __init__(  # noqa: PLR0913 # by name; it brings all of them together
        self,
        *,
        door: Door,
        consumer: Consumer,
        consumed: Sequence[str],
        limits: Limits,
        saved: Saved,
        owner: bytes,
        now: Callable[[], int],
        wall: Callable[[], int],
        prefix: str = "",
        max_age: float = 60.0,
        slow_seconds: float = 10.0,
        sweep_seconds: float = 1.0,
        round_bytes: int = ROUND_BYTES,
    ) -> None:
        """`now` is a clock that is never set, by which all waits; `wall` is for what is written down.

        All connections are looked at every `sweep_seconds`. Who finds more than `round_bytes` in a round
        waits for the next one.
        """
        self._limits = limits
        self.stock = Stock(limits, slow_seconds)
        self.crowd = Crowd(limits)
        self.retained = Retained(limits.retained, min(limits.queue_bytes // 2, _RETAINED))
        self.retained.restore(saved.retained)
        times = WrittenTimes(steady=now, wall=wall, max_age=max_age)
        self._journal = Journal(consumer, owner=owner, times=times)
        self._post = Post(
            self._journal,
            self.retained,
            consumed=consumed,
            requests=RequestRules(prefix, max_age),
            now=now,
        )
        self.sessions = Sessions(self._journal, self._post, self.stock, limits, times, now())
        self.sessions.restore(saved)
        self.lobby = Lobby(
            door=door,
            crowd=self.crowd,
            sessions=self.sessions,
            post=self._post,
            journal=self._journal,
            stock=self.stock,
            now=now,
            prefix=prefix,
            sweep_seconds=sweep_seconds,
        )
        self._desk = Desk(
            post=self._post,
            journal=self._journal,
            door=door,
            stock=self.stock,
            limits=limits,
            round_bytes=round_bytes,
        )
        self.buffer = memoryview(bytearray(_READ))
        """Which all connections read into, one after the other."""

    # For the service

    async def run(self) -> None:
        """Work until cancelled; then everybody is sent away, and what they are owed is written down."""
        writing = asyncio.create_task(self._journal.run(), name="broker.journal")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.lobby.run(), name="broker.lobby")
                await asyncio.shield(writing)
        finally:
            for connection in self.crowd:
                connection.close("the broker stops")
            self._journal.stop()
            await asyncio.wait([writing], timeout=_GRACE)
            writing.cancel()

    @property
    def trouble(self) -> Trouble | None:
        """Why nothing is acknowledged at the moment; None: all is well."""
        return self._journal.trouble

    @property
    def held(self) -> int:
        """How many publishers are not read from until a round is written."""
        return self._journal.held

    @property
    def unwritten(self) -> int:
        """Bytes in the present round."""
        return self._journal.round.size

    def connection(self, address: str = "") -> Connection:
        """Make the other end for a client that connects.

        Whoever has reserved a slot gives its address: a socket that was reset does not know it any more.
        """
        return Connection(self.lobby, self._desk, self._limits, self.buffer, address)

    async def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Publish as the service. At QoS 1 it is written down for all who are owed it when this returns."""
        self._post.pass_on(Publish(topic, payload, qos, retain), _SERVICE)
        if qos:
            done = asyncio.get_running_loop().create_future()
            self._journal.then(lambda: None if done.done() else done.set_result(None))
            await done

    def send(self, messages: Iterable[Publish]) -> None:
        """Send messages as the service to those who are connected; nothing is written down for others."""
        for message in messages:
            self._post.tell(message)

    async def offer(self, message: Publish) -> None:
        """Send one message as `send` does: it leaves at once, or its gateway is away."""
        self._post.tell(message)

    @property
    def muted(self) -> None:
        """Nothing is between us and those who are connected."""
        return

    def listen(self, wanted: str, heard: Callable[[Publish], None]) -> Listener:
        """Let the service hear what a filter matches, beginning with what is retained there."""
        listener = Listener(heard)
        self._post.subscribe(listener, wanted, 1)
        return listener

    def stop_listening(self, wanted: str, listener: Listener) -> None:
        """Take that back."""
        self._post.unsubscribe(listener, wanted)

    def gateways(self) -> dict[str, int]:
        """The gateways that are connected, by MAC, each with the number of its connection (broker-5)."""
        return {
            each.account.name: each.turn
            for each in self.crowd
            if each.account is not None and each.account.kind is Kind.GATEWAY and _is_its_own(each)
        }

    def turn(self, gateway: str) -> int:
        """The number of a gateway's connection, 0 without one: `gateways` without a look at the others."""
        own = filter(_is_its_own, self.crowd.of(str(Account(kind=Kind.GATEWAY, name=gateway))))
        return max((each.turn for each in own), default=0)

    def last_turn(self, gateway: str) -> int:
        """Return the number of a gateway's present or last connection, 0 if it had none since the start."""
        return self.lobby.last_turns.get(gateway, 0)

    def accounts(self) -> list[Account]:
        """Whose connections and sessions there are. Of who is absent nothing is known but the name."""
        present = {each.account for each in self.crowd if each.account is not None}  # with each of its proofs
        absent = {session.account for session in self.sessions} - self.crowd.names
        return [*present, *map(Account.parse, absent)]

    def expel(self, account: Account, *, forget: bool = False) -> None:
        """End all connections of an account, whose word no longer counts; if asked, forget all of it.

        Who came with other credentials or rights than these, because the account has changed since, stays.
        """
        for connection in self.crowd.of(str(account)):
            if not account.proof or connection.account == account:
                connection.will = None
                connection.close("its account has changed")
        if forget:
            for session in self.sessions:
                if session.account == str(account) and session.line is None:
                    self.sessions.end(session)
            self._post.forget(str(account))
            if account.kind is Kind.GATEWAY:
                self.lobby.last_turns.pop(account.name, None)


def _is_its_own(connection: Connection) -> bool:
    """Whether this is the connection of a gateway itself, not that of its diagnostics (broker-5)."""
    account, session = connection.account, connection.session
    return account is not None and session is not None and session.client_id == account.name
