"""Delivery of messages through webhooks, in the format that the receiver understands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meshfleet.rest.channels import WebhookFormat
from meshfleet.service.notifications.delivery import DeliveryResult, Outcome
from meshfleet.service.notifications.http_sender import fail_channel
from meshfleet.service.notifications.message_text import build_chat_text, to_one_line
from meshfleet.service.notifications.messages import EventMessage, HumanMessage
from meshfleet.service.notifications.signature import build_headers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.service.notifications.channels import StoredChannel
    from meshfleet.service.notifications.delivery import OutgoingMessage
    from meshfleet.service.notifications.http_sender import HttpSender

MAX_BODY_BYTES: Final = 20_000

CONTENT_TYPES: Final = {WebhookFormat.CLOUDEVENTS: "application/cloudevents+json"}
"""Content types of formats, if they are not `application/json`."""


class _Origin(NamedTuple):
    """Installation that messages come from."""

    public_url: str
    installation: str


class WebhookDeliverer:
    """Deliverer of channels of the kind `webhook`."""

    def __init__(self, sender: HttpSender, *, public_url: str, installation: str) -> None:
        """Create a deliverer. Links begin with `public_url`; `installation` is its id."""
        self._sender = sender
        self._origin = _Origin(public_url, installation)

    async def deliver(self, channel: StoredChannel, message: OutgoingMessage) -> DeliveryResult:
        """Try once to deliver a message."""
        if channel.target.url is None:
            return fail_channel("the channel has no URL: set one")
        body = _encode_body(channel, message, self._origin)
        if body is None:
            return DeliveryResult(
                Outcome.MESSAGE_REFUSED,
                problem="the message was written for people, before the format of the channel was changed",
            )
        try:
            headers = build_headers(message.id, body, channel.secrets, timestamp=message.now // 1000)
        except ValueError:
            return fail_channel("the secret of the channel is damaged: create a new one")
        headers["Content-Type"] = CONTENT_TYPES.get(channel.target.format, "application/json")
        return await self._sender.send(
            "POST", channel.target.url, content=body, headers=headers, now=message.now
        )


def _encode_body(channel: StoredChannel, message: OutgoingMessage, origin: _Origin) -> bytes | None:
    """Return the body of a request, at most 20 kB. Return None if the format has no place for the message."""
    if channel.target.format is WebhookFormat.TEXT:
        return _encode_text(channel, message.body, origin)
    if isinstance(message.body, HumanMessage):
        return None
    body = _encode_event(channel, message, message.body, origin)
    if len(body) <= MAX_BODY_BYTES:
        return body
    short = msgspec.structs.replace(message.body, data=_cut_data(message.body.data))
    return _encode_event(channel, message, short, origin)


def _encode_text(channel: StoredChannel, message: EventMessage | HumanMessage, origin: _Origin) -> bytes:
    while True:
        text = build_chat_text(message, public_url=origin.public_url, channel_name=channel.name)
        body = msgspec.json.encode({"text": text})
        if len(body) <= MAX_BODY_BYTES or isinstance(message, EventMessage) or not message.entries:
            return body
        half = len(message.entries) // 2
        left_out = len(message.entries) - half
        message = msgspec.structs.replace(
            message, entries=message.entries[:half], more=message.more + left_out
        )


def _encode_event(
    channel: StoredChannel, message: OutgoingMessage, event: EventMessage, origin: _Origin
) -> bytes:
    if channel.target.format is WebhookFormat.PAGERDUTY:
        key = channel.target.routing_key or ""
        return msgspec.json.encode(_build_pagerduty(channel, message, event, origin, key))
    if channel.target.format is WebhookFormat.CLOUDEVENTS:
        return msgspec.json.encode(_build_cloudevent(message, event, origin))
    return msgspec.json.encode({"type": event.type, "timestamp": event.timestamp, "data": event.data})


def _build_cloudevent(message: OutgoingMessage, event: EventMessage, origin: _Origin) -> dict[str, Any]:
    """Return an event of CloudEvents 1.0. Its type is that of the message after `meshfleet.`."""
    subject = _get_alarm(message, event)
    return {
        "specversion": "1.0",
        "id": message.id,
        "source": origin.public_url,
        "type": f"meshfleet.{event.type}",
        **({"subject": subject} if subject else {}),
        "time": event.timestamp,
        "datacontenttype": "application/json",
        "data": event.data,
    }


_PAGERDUTY_ACTIONS: Final = {"alarm.acknowledged": "acknowledge", "alarm.cleared": "resolve"}
"""Actions of the Events API 2 by type; all other messages are of the action `trigger`."""
_PAGERDUTY_SEVERITIES: Final = frozenset({"critical", "warning", "info"})
_MAX_SUMMARY_LENGTH: Final = 1024  # of the Events API 2


def _build_pagerduty(
    channel: StoredChannel, message: OutgoingMessage, event: EventMessage, origin: _Origin, routing_key: str
) -> dict[str, Any]:
    """Return an event of the Events API 2 of PagerDuty. A test opens an incident of the severity `info`."""
    alarm = _get_alarm(message, event)
    severity = str(event.data.get("severity"))
    test = f"Test message of the channel {channel.name}: nothing is wrong, resolve this incident"
    summary = to_one_line(str(event.data.get("sentence") or test))
    subject = event.data.get("subject")
    name = subject.get("name") if isinstance(subject, dict) else None
    link = f"{origin.public_url}/alarms" + (f"/{alarm}" if alarm else "")
    return {
        "routing_key": routing_key,
        "event_action": _PAGERDUTY_ACTIONS.get(event.type, "trigger"),
        "dedup_key": f"meshfleet-{origin.installation}-{alarm or message.id}",
        "client": "Meshfleet",
        "client_url": origin.public_url,
        "payload": {
            "summary": summary[:_MAX_SUMMARY_LENGTH],
            "source": to_one_line(str(name or origin.public_url))[:_MAX_SUMMARY_LENGTH],
            "severity": severity if severity in _PAGERDUTY_SEVERITIES else "info",
            "timestamp": event.timestamp,
            "class": str(event.data.get("rule") or event.type),
            "custom_details": event.data,
        },
        "links": [{"href": link, "text": "Open in Meshfleet"}],
    }


def _get_alarm(message: OutgoingMessage, event: EventMessage) -> str | None:
    """Return the id of the alarm that a message is about."""
    found = message.thread or event.data.get("id")
    return found if isinstance(found, str) else None


_ESSENTIAL: Final = (
    *("id", "key", "rule", "severity", "state", "sentence", "since", "openedAt", "clearedAt"),
    *("memberCount", "affectedDevices", "version", "channel"),
)
"""Fields of an alarm that a message keeps if it is too large; the others can be read from REST."""
_MAX_FIELD_LENGTH: Final = 500


def _cut_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the essential fields, which fit into a message, and the note that others are missing."""
    kept = {
        name: value[:_MAX_FIELD_LENGTH] if isinstance(value, str) else value
        for name in _ESSENTIAL
        if isinstance(value := data.get(name), str | int | None) and name in data
    }
    return {**kept, "truncated": True}
