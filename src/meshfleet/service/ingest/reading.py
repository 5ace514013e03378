"""Messages become a draft. The straight line from the network to the database begins here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.errors import UnclaimedGateway, WireError
from meshfleet.service.ingest.rejects import reject, too_large
from meshfleet.service.ingest.sources import Sources
from meshfleet.wire.ids import EVERY_GATEWAY, mac_number, number_mac
from meshfleet.wire.mqtt.packets import Oversized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.ingest.guests import Guests
    from meshfleet.wire.mqtt.packets import Publish

_EVERY_GATEWAY: Final = mac_number(EVERY_GATEWAY)
"""Which is nobody, whoever claims to be it."""


class Reader:
    """Reads messages. What cannot be read is a reject, and stops nobody (report-30)."""

    def __init__(self, prefix: str, guests: Guests | None) -> None:
        self._sources = Sources(prefix)
        self._guests = guests

    def read(self, messages: Sequence[Publish], draft: Draft) -> None:
        """Add what messages say to a draft."""
        front, places, subjects = self._sources.front, self._sources.places, self._sources.subjects
        seen, gateways, guests, shifts = draft.seen, draft.gateways, self._guests, draft.shifts
        for message in messages:
            topic = message.topic
            place, subject = places.get(topic[:front]), subjects.get(topic[front:])
            try:
                if place is None or subject is None:
                    place, subject = self._sources.read(topic)
                device, gateway = place
                if guests is not None and gateway not in guests.known:
                    self._meet(guests, gateway, draft)
                if type(message) is Oversized:
                    raise too_large(message)
                name, take = subject
                if gateway in shifts:
                    draft.correct(shifts[gateway], unproved=None if draft.is_proved(gateway) else gateway)
                    try:
                        take(draft, device, gateway, message.payload)
                    finally:
                        draft.correct(0)
                else:
                    take(draft, device, gateway, message.payload)
            except WireError as exc:
                draft.rejects.append(reject(message, exc, draft.now))
            else:
                seen.append(name)
                gateways.append(gateway)

    def _meet(self, guests: Guests, gateway: int, draft: Draft) -> None:
        """A gateway that nobody claimed speaks (rest-79)."""
        if not guests.are_welcome or gateway == _EVERY_GATEWAY:
            draft.strangers.add(gateway)
            raise UnclaimedGateway("gateway", f"{number_mac(gateway)} is not claimed")
        draft.newcomers.add(gateway)
