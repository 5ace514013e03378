"""Task that writes, composes and sends messages about alarms, and calls watchdogs."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from meshfleet.db.tables import broker_owner
from meshfleet.errors import DatabaseUnavailable, FleetError
from meshfleet.errors.startup import UnusableDatabase
from meshfleet.mqtt.broker import check_ownership
from meshfleet.protocol.times import format_millis
from meshfleet.rest.channels import ChannelKind, ChannelTest
from meshfleet.service.notifications import clock_changes, composer, outbox, planner
from meshfleet.service.notifications.channels import load_channels
from meshfleet.service.notifications.delivery import Outcome, OutgoingMessage
from meshfleet.service.notifications.messages import EventMessage, HumanMessage, MessageKind
from meshfleet.service.notifications.mqtt_publisher import MqttDeliverer
from meshfleet.service.notifications.provisional import ProvisionalMessages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.clock import Now
    from meshfleet.service.notifications.channels import StoredChannel
    from meshfleet.service.notifications.delivery import Deliverer, DeliveryResult
    from meshfleet.service.notifications.outbox import WaitingMessage
    from meshfleet.service.notifications.planner import Plan

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 1.0
"""Seconds between two looks at what is to be sent."""
_PARALLEL: Final = 4
"""Maximum number of events that are sent to a program at the same time, each about another alarm."""
_BATCH_SECONDS: Final = 0.4
"""Seconds between two batches of that many events: at most ten per second."""
_WATCHDOG_MS: Final = 5 * 60_000
_CLEAN_UP_MS: Final = 60_000
_CLOCK_JUMP_MS: Final = 1_000
"""The clock was set back if it is this much earlier than before."""
_READ_AHEAD: Final = 256
"""Number of events that are looked for at once. With a long queue, one look takes as long as many sends."""


class _Unrecorded(NamedTuple):
    """Delivery whose result could not be stored yet."""

    message: WaitingMessage
    result: DeliveryResult


class Notifier:
    """Sends messages about alarms while the service runs. Only one process of a database may do so."""

    def __init__(  # noqa: PLR0913 # keyword-only collaborators
        self,
        database: Database,
        deliverers: Mapping[ChannelKind, Deliverer],
        *,
        on_changed: Callable[[Collection[int]], None],
        is_well: Callable[[], bool],
        owner: bytes | None,
        now: Now,
        batch_seconds: float = _BATCH_SECONDS,
        random: Callable[[], float] = random.random,
    ) -> None:
        """Create a notifier with a deliverer for each kind of channel.

        Alarms whose silence has ended are reported to `on_changed`. Watchdogs are called only while `is_well`
        says that the service does its work. `owner` is the token that proves that no other process sends
        messages; None if there can be none.
        """
        self._database = database
        self._deliverers = deliverers
        self._on_changed = on_changed
        self._is_well = is_well
        self._owner = owner
        self._now = now
        self._batch_seconds = batch_seconds
        self._random = random
        self._provisional = ProvisionalMessages(
            database, deliverers, check_ownership=self._check_ownership, now=now
        )
        self._wakeup = asyncio.Event()
        self._sending: dict[int, asyncio.Task[None]] = {}
        """Task that sends the messages of a channel, by its id."""
        self._called: dict[int, int] = {}
        """Time at which each watchdog was called last."""
        self._unrecorded: dict[int, dict[int, _Unrecorded]] = {}
        """Deliveries by channel, then by message, whose results are not stored: none is repeated."""
        self._cleaned_at = 0
        self._looked_at: int | None = None

    def wake(self) -> None:
        """Look at alarms now, because one has changed."""
        self._wakeup.set()

    async def run(self) -> None:
        """Write and send messages until canceled."""
        try:
            while True:
                try:
                    await self.look()
                except (FleetError, DBAPIError) as exc:
                    _log.warning(
                        "messages about alarms cannot be sent (%s); trying again", type(exc).__name__
                    )
                except Exception:  # noqa: BLE001 # a defect here must not stop the service
                    _log.exception("messages about alarms cannot be sent: internal error; trying again")
                await self._wait()
        finally:
            await self._cancel_sending()

    async def look(self) -> None:
        """Write the messages that are due and start to send them. Tell of a database that is away."""
        since = self._now()
        try:
            problem = self._database.write_problem
            if problem is None and (number := await self._provisional.write_alarm()) is not None:
                self._on_changed({number})
            await self.start_due()
            if problem is None:
                await self._provisional.prepare()
            else:  # such as a full disk: queries work, but nothing can be stored
                await self._provisional.report_failure(problem, since)
        except DatabaseUnavailable as exc:
            await self._provisional.report_failure(exc.readiness_problem, since)
            raise

    async def run_once(self) -> None:
        """Write and send everything that is due now, and wait until it is done."""
        await self.start_due()
        await asyncio.gather(*self._sending.values())

    async def start_due(self) -> None:
        """Write the messages about changed alarms, and start to send what is due."""
        now = self._now()
        await self._check_clock(now)
        while await self._database.read(planner.needs_plan, now):
            plan = await self._database.write(self._write_messages, now)
            if plan.changed:
                self._on_changed(plan.changed)
            if not plan.has_more:
                break
        channels = await self._database.read(load_channels, now)
        busy = await self._database.read(outbox.find_channels_with_work, now)
        for each in channels.values():
            if each.id not in self._sending:
                self._start_channel(each, now, is_busy=each.id in busy)
        if not 0 <= now - self._cleaned_at < _CLEAN_UP_MS:
            self._cleaned_at = now
            if await self._database.write(self._clean_up, now):
                self._cleaned_at = 0

    async def _check_clock(self, now: int) -> None:
        """Move stored times if the clock was set back: else nothing would be due for that long."""
        before = self._looked_at
        if before is None:
            before = await self._database.read(clock_changes.load_latest_time)
        if before - now >= _CLOCK_JUMP_MS:
            by = now - before
            _log.warning("the clock was set back by %d s: times of messages are moved", -by // 1000)
            await self._database.write(self._shift_times, by, now)
            self._called = {number: called + by for number, called in self._called.items()}
        self._looked_at = now

    async def test(self, channel: StoredChannel) -> ChannelTest:
        """Send a message to a channel now, to find out whether it works."""
        now = self._now()
        body: EventMessage | HumanMessage
        if channel.is_for_people:
            body = HumanMessage(entries=[], kind=MessageKind.TEST)
        else:
            body = EventMessage(
                type="channel.test", timestamp=format_millis(now), data={"channel": channel.name}
            )
        message = OutgoingMessage(f"msg_test_{channel.id}_{now}", now, body)
        result = await self._deliverers[channel.kind].deliver(channel, message)
        return ChannelTest(
            delivered=result.outcome is Outcome.DELIVERED,
            status=result.status,
            problem=result.problem,
            milliseconds=max(0, self._now() - now),
        )

    async def withdraw(self, alarms: Collection[int]) -> None:
        """Remove the retained messages about alarms from the MQTT broker, after their channel was deleted."""
        deliverer = self._deliverers[ChannelKind.MQTT]
        if isinstance(deliverer, MqttDeliverer):
            await deliverer.withdraw(alarms)

    @staticmethod
    def _is_waiting(channel: StoredChannel, now: int) -> bool:
        """Return whether a failing channel is not tried yet."""
        return channel.retry_at is not None and channel.retry_at > now

    def _start_channel(self, channel: StoredChannel, now: int, *, is_busy: bool) -> None:
        """Start to send what is due for a channel, or to store what was sent."""
        if self._unrecorded.get(channel.id):
            self._start(channel, self._send_due(channel))
        elif not channel.is_enabled or self._is_waiting(channel, now):
            return
        elif channel.kind is ChannelKind.WATCHDOG:
            if self._is_well() and self._is_call_due(channel, now):
                self._called[channel.id] = now
                self._start(channel, self._call_watchdog(channel))
        elif is_busy and self._database.write_problem is None:
            self._start(channel, self._send_due(channel))

    def _is_call_due(self, channel: StoredChannel, now: int) -> bool:
        """Return whether a watchdog is to be called. One that failed is called again at its `retry_at`."""
        called = self._called.get(channel.id)
        if called is None or not 0 <= now - called < _WATCHDOG_MS:
            return True
        return channel.retry_at is not None and called < channel.retry_at

    def _start(self, channel: StoredChannel, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"notifications.{channel.id}")
        self._sending[channel.id] = task
        task.add_done_callback(lambda _: self._sending.pop(channel.id, None))

    async def _send_due(self, channel: StoredChannel) -> None:
        """Send the messages of a channel that are due, until one fails because the channel does."""
        queue: list[int] = []
        try:
            if unrecorded := list(self._unrecorded.get(channel.id, {}).values()):
                for each in unrecorded:
                    await self._store_result(each)
                return  # the channel is not what it was when it was loaded
            messages = await self._take(channel, queue)
            while messages and await self._send_batch(channel, messages):
                await asyncio.sleep(self._batch_seconds)
                messages = await self._take(channel, queue)
        except (FleetError, DBAPIError) as exc:
            _log.warning(
                "messages to %r cannot be read or recorded (%s); trying again",
                channel.name,
                type(exc).__name__,
            )
        except Exception:  # noqa: BLE001 # a defect here must not stop the other channels
            _log.exception("messages to %r cannot be sent: internal error; trying again", channel.name)

    async def _take(self, channel: StoredChannel, queue: list[int]) -> list[WaitingMessage]:
        """Return messages to send now. `queue` has the ids of others that were found before.

        There are none if the channel has changed, or if a result could not be stored.
        """
        now = self._now()
        if self._database.write_problem is not None:
            return []
        if not channel.is_for_people:
            return await self._database.read(self._load_next, channel, queue, now, _PARALLEL)
        if outbox.takes_another(channel):
            await self._database.write(self._compose_another, channel, now)
        found = await self._database.read(self._load_next, channel, [], now, 1)
        if not found and await self._database.read(composer.is_message_due, channel, now):
            await self._database.write(self._compose, channel, now)
            found = await self._database.read(self._load_next, channel, [], now, 1)
        return found

    async def _send_batch(self, channel: StoredChannel, messages: Collection[WaitingMessage]) -> bool:
        """Send messages about different alarms at the same time. Return whether the channel works."""
        results = await asyncio.gather(
            *(self._send(channel, each) for each in messages), return_exceptions=True
        )
        outcomes = set()
        for each in results:
            if isinstance(each, BaseException):
                raise each  # only now: the other messages must not be sent while this task goes on
            outcomes.add(each)
        return channel.failing_since is None and outcomes <= {Outcome.DELIVERED, Outcome.MESSAGE_REFUSED}

    async def _send(self, channel: StoredChannel, message: WaitingMessage) -> Outcome:
        """Send a message, and record how it went."""
        outgoing = OutgoingMessage(
            f"msg_{message.created_at}_{channel.id}_{message.id}",
            self._now(),
            message.body,
            thread=None if message.alarm is None else f"alarm-{message.alarm}",
            sequence=message.id,
        )
        result = await self._deliverers[channel.kind].deliver(channel, outgoing)
        delivery = _Unrecorded(message, result)
        self._unrecorded.setdefault(channel.id, {})[message.id] = delivery
        await self._store_result(delivery)
        if result.outcome is Outcome.DELIVERED:
            if channel.failing_since is not None:
                _log.warning("messages to %r are delivered again", channel.name)
        elif channel.failing_since is None:
            _log.warning("a message to %r was not delivered: %s", channel.name, result.problem)
        return result.outcome

    async def _store_result(self, delivery: _Unrecorded) -> None:
        """Store the result of a delivery. If that fails, it is tried again before anything else is sent."""
        message = delivery.message
        await self._database.write(self._record, message, delivery.result)
        del self._unrecorded[message.channel][message.id]

    async def _call_watchdog(self, channel: StoredChannel) -> None:
        now = self._now()
        body = EventMessage(type="watchdog", timestamp=format_millis(now), data={})
        result = await self._deliverers[channel.kind].deliver(
            channel, OutgoingMessage(f"watchdog_{now}", now, body)
        )
        if result.outcome is not Outcome.DELIVERED and channel.failing_since is None:
            _log.warning("watchdog %r could not be called: %s", channel.name, result.problem)
        await self._database.write(self._record_watchdog, channel.id, result)

    # In transactions

    def _write_messages(self, connection: Connection, now: int) -> Plan:
        self._check_ownership(connection)
        return planner.write_messages(connection, now)

    def _load_next(
        self, connection: Connection, channel: StoredChannel, queue: list[int], now: int, limit: int
    ) -> list[WaitingMessage]:
        """Load up to `limit` messages of a queue, which is filled before if it is empty.

        Return none if the channel has changed. Raise `UnusableDatabase` if another process has taken over.
        """
        # The row is not locked as `check_ownership` does: this transaction only reads.
        if self._owner is not None and connection.scalar(select(broker_owner.c.token)) != self._owner:
            raise UnusableDatabase("another process sends the messages about alarms")
        if not outbox.is_unchanged(connection, channel, now):
            return []
        if not queue:
            queue += outbox.find_due(connection, channel, now, limit=_READ_AHEAD if limit > 1 else 1)
        while queue:
            found = outbox.load_messages(connection, channel, queue[:limit])
            del queue[:limit]
            if found:
                return found
        return []

    def _compose_another(self, connection: Connection, channel: StoredChannel, now: int) -> None:
        """Make a second message, unless there is one: the first may be what does not arrive."""
        self._check_ownership(connection)
        if outbox.count_waiting(connection, channel) == 1:
            composer.compose_message(connection, channel, now, beside_waiting=True)

    def _compose(self, connection: Connection, channel: StoredChannel, now: int) -> None:
        self._check_ownership(connection)
        composer.compose_message(connection, channel, now)

    def _record(self, connection: Connection, message: WaitingMessage, result: DeliveryResult) -> None:
        self._check_ownership(connection)
        outbox.record_result(connection, message, result, self._now(), self._random)

    def _record_watchdog(self, connection: Connection, number: int, result: DeliveryResult) -> None:
        self._check_ownership(connection)
        outbox.record_call(connection, number, result, self._now(), self._random)

    def _clean_up(self, connection: Connection, now: int) -> bool:
        self._check_ownership(connection)
        return outbox.remove_old_messages(connection, now)

    def _shift_times(self, connection: Connection, by: int, now: int) -> None:
        self._check_ownership(connection)
        clock_changes.shift_times(connection, by, now)

    def _check_ownership(self, connection: Connection) -> None:
        if self._owner is not None:
            check_ownership(connection, self._owner)

    async def _wait(self) -> None:
        """Wait until an alarm has changed, or until it is time to look again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_SECONDS):
                await self._wakeup.wait()
        self._wakeup.clear()

    async def _cancel_sending(self) -> None:
        tasks = list(self._sending.values())
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
