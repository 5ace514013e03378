"""Calls of watchdogs: another service notices by their absence that this one does not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.service.notifications.delivery import DeliveryResult, Outcome

if TYPE_CHECKING:
    from meshfleet.service.notifications.channels import StoredChannel
    from meshfleet.service.notifications.delivery import OutgoingMessage
    from meshfleet.service.notifications.http_sender import HttpSender


class WatchdogDeliverer:
    """Deliverer of channels of the kind `watchdog`: a GET request without a message."""

    def __init__(self, sender: HttpSender) -> None:
        self._sender = sender

    async def deliver(self, channel: StoredChannel, message: OutgoingMessage) -> DeliveryResult:
        """Call the URL of a channel once."""
        if channel.target.url is None:
            return DeliveryResult(Outcome.CHANNEL_FAILED, problem="the channel has no URL: set one")
        return await self._sender.send("GET", channel.target.url, now=message.now)
