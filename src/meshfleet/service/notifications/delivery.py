"""Delivery of one message to one channel: what is delivered, and how it went."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from meshfleet.service.notifications.channels import StoredChannel
    from meshfleet.service.notifications.messages import EventMessage, HumanMessage


class Outcome(StrEnum):
    """How a delivery went."""

    DELIVERED = "delivered"
    CHANNEL_FAILED = "channel-failed"
    """The channel does not work now: no connection, no permission, or an error of the server."""
    MESSAGE_REFUSED = "message-refused"
    """The receiver does not accept this message."""
    CHANNEL_GONE = "channel-gone"
    """The receiver does not want messages any more (410)."""


class DeliveryResult(NamedTuple):
    """Result of a delivery."""

    outcome: Outcome
    status: int | None = None
    """HTTP status, or the code of the mail server; None without an answer."""
    problem: str | None = None
    """Why it failed, for operators: without secrets, URLs and the body of the answer."""
    retry_after: float | None = None
    """Seconds after which the receiver wants to be asked again, if it says so."""


class OutgoingMessage(NamedTuple):
    """Message to deliver now."""

    id: str
    """Id by which receivers recognize a repeated message: it is equal in each attempt."""
    now: int
    """Time of the attempt as Unix time in milliseconds."""
    body: EventMessage | HumanMessage
    thread: str | None = None
    """Id of the alarm, if the message is about one alarm: mail programs show its messages together."""
    sequence: int = 0
    """Number of the message; increases from message to message of a channel."""


class Deliverer(Protocol):
    """Delivers messages to channels of one kind. It never raises: whatever happens is a result."""

    async def deliver(self, channel: StoredChannel, message: OutgoingMessage) -> DeliveryResult:
        """Try once to deliver a message, within 15 seconds."""
