"""Subscriber of an event hub without a connection, and the events that it receives."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from meshfleet.rest.accounts import Role
from meshfleet.service.actor import Actor
from meshfleet.service.live.subscriber import LiveSubscriber

if TYPE_CHECKING:
    from meshfleet.service.live.filters import EventFilter
    from meshfleet.service.live.hub import EventHub


def new_subscriber(account: str = "a") -> LiveSubscriber:
    """Return a subscriber that gets every event as a line of JSON."""
    actor = Actor(name=account, role=Role.VIEWER, kind="user")
    return LiveSubscriber(lambda event: event.body + b"\n", actor, "token")


def subscribe(
    hub: EventHub, *filters: EventFilter, account: str = "a", after: str | None = None
) -> LiveSubscriber:
    """Add a subscriber with these filters to a hub."""
    subscriber = new_subscriber(account)
    hub.add(subscriber)
    for event_filter in filters:
        hub.subscribe(subscriber, event_filter, after)
    return subscriber


async def read_events(subscriber: LiveSubscriber) -> list[Any]:
    """Wait for events, and return those that have arrived."""
    async with asyncio.timeout(30):
        chunk = await subscriber.next_chunk()
    assert chunk is not None
    return [json.loads(line) for line in chunk.splitlines()]
