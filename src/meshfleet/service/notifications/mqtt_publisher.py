"""Publication of alarms over MQTT: a retained message for each alarm that is not over.

Who subscribes later gets the alarms of that moment, because their messages are retained. The end of an alarm
is told in a last message, and then in an empty one that removes the retained one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from meshfleet.errors import FleetError
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.rest.alarms import AlarmState
from meshfleet.service.notifications.delivery import DeliveryResult, Outcome
from meshfleet.service.notifications.messages import EventMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.service.notifications.channels import StoredChannel
    from meshfleet.service.notifications.delivery import OutgoingMessage
    from meshfleet.service.transport import ReportSource

_log = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 15.0
"""Maximum number of seconds of an attempt."""
ALARM_TOPICS: Final = "meshfleet/alarms"
"""Parent of the topics of alarms, below the topic prefix of the installation."""


class MqttDeliverer:
    """Deliverer of channels of the kind `mqtt`, through the connection of the service to its broker."""

    def __init__(self, source: ReportSource, *, prefix: str, timeout: float = TIMEOUT_SECONDS) -> None:
        """Create a deliverer. `prefix` is the topic prefix of the installation."""
        self._source = source
        self._parent = f"{prefix}/{ALARM_TOPICS}" if prefix else ALARM_TOPICS
        self._timeout = timeout

    async def deliver(self, channel: StoredChannel, message: OutgoingMessage) -> DeliveryResult:  # noqa: ARG002 # all channels have the same topics
        """Publish an alarm, and wait until the broker has it."""
        if not isinstance(message.body, EventMessage):
            return DeliveryResult(Outcome.MESSAGE_REFUSED, problem="the message was written for people")
        return await self._publish(self._build_messages(message.body))

    async def withdraw(self, alarms: Iterable[int]) -> None:
        """Remove the retained messages of alarms whose channel is deleted. If that fails, they stay."""
        messages = [Publish(f"{self._parent}/alarm-{each}", b"", 1, retain=True) for each in alarms]
        result = await self._publish(messages) if messages else None
        if result is not None and result.outcome is not Outcome.DELIVERED:
            _log.warning("retained messages about alarms stay at the broker: %s", result.problem)

    def _build_messages(self, event: EventMessage) -> list[Publish]:
        body = msgspec.json.encode(event.data)
        number = event.data.get("id")
        if number is None:
            return [Publish(f"{self._parent}/test", body, 1)]
        topic = f"{self._parent}/{number}"
        if event.data.get("state") == AlarmState.CLEARED:
            return [Publish(topic, body, 1), Publish(topic, b"", 1, retain=True)]
        return [Publish(topic, body, 1, retain=True)]

    async def _publish(self, messages: list[Publish]) -> DeliveryResult:
        if (reason := self._source.transport.unavailable_reason) is not None:
            return _failed(f"the MQTT broker cannot be reached ({reason}): check it, and its address")
        try:
            async with asyncio.timeout(self._timeout):
                await self._source.publish_all(messages)
        except TimeoutError:
            return _failed(
                f"the MQTT broker did not take the message within {self._timeout:g} s: check its log"
            )
        except FleetError as exc:
            return _failed(f"the MQTT broker did not take the message ({exc}): check its log")
        except Exception as exc:  # noqa: BLE001 # a defect must not stop other channels
            _log.error("an alarm was not published: internal error", exc_info=True)
            return _failed(f"internal error ({type(exc).__name__}): see the log")
        return DeliveryResult(Outcome.DELIVERED)


def _failed(problem: str) -> DeliveryResult:
    return DeliveryResult(Outcome.CHANNEL_FAILED, problem=problem)
