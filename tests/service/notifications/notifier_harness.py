"""Notifier on a moved clock, with channels that record what they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import func, insert, select

from meshfleet.db.tables import channel, notification, notification_route
from meshfleet.rest.channels import AlarmRoute, ChannelKind
from meshfleet.service.notifications.channels import ChannelTarget
from meshfleet.service.notifications.delivery import DeliveryResult, Outcome
from meshfleet.service.notifications.messages import EventMessage, HumanMessage
from meshfleet.service.notifications.notifier import Notifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database
    from meshfleet.service.notifications.channels import StoredChannel
    from meshfleet.service.notifications.delivery import Deliverer, OutgoingMessage

DELIVERED = DeliveryResult(Outcome.DELIVERED, status=200)
FAILED = DeliveryResult(Outcome.CHANNEL_FAILED, status=503, problem="the receiver answers 503")
REFUSED = DeliveryResult(Outcome.MESSAGE_REFUSED, status=422, problem="the receiver answers 422")


class Killed(BaseException):
    """End of a process."""


class Recorder:
    """Deliverer that records messages, and answers as a test wants."""

    def __init__(self) -> None:
        self.received: list[tuple[str, OutgoingMessage]] = []
        """Messages that were delivered, with the names of their channels."""
        self.attempts: list[tuple[str, OutgoingMessage]] = []
        self.kills: set[int] = set()
        """Numbers of attempts after which the process is killed, before it can record them."""
        self.answer: Callable[[str, OutgoingMessage], DeliveryResult] = lambda _name, _message: DELIVERED

    async def deliver(self, channel: StoredChannel, message: OutgoingMessage) -> DeliveryResult:
        """Record a message."""
        self.attempts.append((channel.name, message))
        result = self.answer(channel.name, message)
        if result.outcome is Outcome.DELIVERED:
            self.received.append((channel.name, message))
        if len(self.attempts) in self.kills:
            raise Killed
        return result

    def texts(self, name: str = "mail") -> list[list[str]]:
        """Return the sentences of each message for people, with the kinds of its entries."""
        found = []
        for each, message in self.received:
            if each == name and isinstance(message.body, HumanMessage):
                lines = [f"{entry.kind}: {entry.sentence}" for entry in message.body.entries]
                passed = [f"{message.body.passed} passed"] if message.body.passed else []
                found.append(lines + passed)
        return found

    def kinds(self, name: str = "mail") -> list[list[str]]:
        """Return the kinds of the entries of each message for people."""
        return [[each.partition(":")[0] for each in lines] for lines in self.texts(name)]

    def events(self, name: str = "hook") -> list[tuple[str, str]]:
        """Return type and alarm of each event for a program."""
        return [
            (message.body.type, message.body.data["id"])
            for each, message in self.received
            if each == name and isinstance(message.body, EventMessage)
        ]


class NotifierHarness:
    """Channels and routes in a database, and a notifier that can be killed."""

    def __init__(self, database: Database, now: Callable[[], int]) -> None:
        self.database = database
        self._now = now
        self.recorder = Recorder()
        self.deliverers: dict[ChannelKind, Deliverer] = dict.fromkeys(ChannelKind, self.recorder)
        """Deliverers by kind of channel, which a test may replace."""
        self.notifier = self.start()

    def start(self) -> Notifier:
        """Start a notifier, as a process of the service does."""
        self.notifier = Notifier(
            self.database,
            self.deliverers,
            on_changed=lambda _changed: None,
            is_well=lambda: True,
            owner=None,
            now=self._now,
            batch_seconds=0,
            random=lambda: 0.0,
        )
        return self.notifier

    def add_hook(self, name: str = "hook", **options: Any) -> str:
        """Add a webhook for programs. Return its id."""
        return self._add(name, ChannelKind.WEBHOOK, ChannelTarget(url="https://example.com/hook", **options))

    def add_mqtt(self, name: str = "mqtt") -> str:
        """Add a channel that publishes alarms over MQTT. Return its id."""
        return self._add(name, ChannelKind.MQTT, ChannelTarget())

    def add_mail(self, name: str = "mail") -> str:
        """Add a channel for people. Return its id."""
        return self._add(name, ChannelKind.EMAIL, ChannelTarget(recipients=("ops@example.com",)))

    def _add(self, name: str, kind: ChannelKind, target: ChannelTarget) -> str:
        values = {
            "name": name,
            "kind": str(kind),
            "enabled": True,
            "target": msgspec.json.encode(target).decode(),
            "created_at": 0,
            "failures": 0,
            "version": 1,
        }
        statement = insert(channel).values(**values).returning(channel.c.id)
        number = self.database.write_now(lambda connection: connection.execute(statement).scalar_one())
        return f"channel-{number}"

    def add_route(self, *channels: str, **options: Any) -> None:
        """Add a route behind all others."""
        route = msgspec.convert({"name": "route", "channels": channels, **options}, AlarmRoute)

        def add(connection: Any) -> None:
            count = connection.scalar(select(func.count()).select_from(notification_route))
            body = msgspec.json.encode(route).decode()
            connection.execute(insert(notification_route).values(position=count, body=body))

        self.database.write_now(add)

    def states(self) -> dict[str, int]:
        """Count the messages by state."""
        query = select(notification.c.state, func.count()).group_by(notification.c.state)
        return self.database.read_now(lambda connection: dict(map(tuple, connection.execute(query))))
