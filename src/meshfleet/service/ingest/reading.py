"""Messages become a draft. The straight line from the network to the database begins here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.errors import UnclaimedGateway, WireError
from meshfleet.service.ingest.rejects import reject, too_large
from meshfleet.service.ingest.sources import Sources
from meshfleet.wire.ids import number_mac
from meshfleet.wire.mqtt.packets import Oversized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.ingest.guests import Guests
    from meshfleet.wire.mqtt.packets import Publish


class Reader:
    """Reads messages. What cannot be read is a reject, and stops nobody (report-30)."""

    def __init__(self, prefix: str, guests: Guests | None) -> None:
        self._sources = Sources(prefix)
        self._guests = guests

    def read(self, messages: Sequence[Publish], draft: Draft) -> None:
        """Add what messages say to a draft."""
        find = self._sources.find
        counts = draft.counts
        for message in messages:
            try:
                source = find(message.topic) or self._sources.read(message.topic)
                if self._guests is not None and source.gateway not in self._guests.known:
                    self._meet(source.gateway, draft)
                if type(message) is Oversized:
                    raise too_large(message)
                report = source.decode(message.payload)
                source.take(draft, source, report)
            except WireError as exc:
                draft.rejects.append(reject(message, exc, draft.now))
            else:
                counts[source.name] = counts.get(source.name, 0) + 1

    def _meet(self, gateway: int, draft: Draft) -> None:
        """A gateway that nobody claimed speaks (rest-79)."""
        assert self._guests is not None  # noqa: S101 # asked before
        if not self._guests.are_welcome:
            raise UnclaimedGateway("gateway", f"{number_mac(gateway)} is not claimed")
        draft.newcomers.add(gateway)
