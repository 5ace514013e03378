"""The messaging interface of one installation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshfleet.service.asyncapi.document import describe
from meshfleet.service.asyncapi.servers import servers_of

if TYPE_CHECKING:
    from meshfleet.settings import Settings


class Messaging:
    """Describes the messaging of a service with these settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def describe(self, reached: str | None) -> dict[str, Any]:
        """Describe it to somebody who found the service at this host."""
        return describe(servers_of(self._settings, reached), self._settings.topic_prefix)
