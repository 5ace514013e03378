"""What the topic of a report says.

A topic has a front, which names a gateway and a device, and an end, which tells what is reported of it. Both
are read once and then remembered: there are as many fronts as devices and a few dozen ends, but more topics
than anybody could remember.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from meshfleet.errors import MalformedTopic, shown
from meshfleet.service.ingest.subjects import subject
from meshfleet.wire.codes import Kind
from meshfleet.wire.identifiers import BUILTIN
from meshfleet.wire.ids import Mac, mac_number
from meshfleet.wire.topics import ReportTopic, Topics

if TYPE_CHECKING:
    from meshfleet.service.ingest.subjects import Subject

_PLACES: Final = 1 << 18
_SUBJECTS: Final = 1 << 13
"""How many are remembered."""

Place: TypeAlias = tuple[int, int]
"""Of which device something is reported, and by which gateway."""


class Sources:
    """Topics of reports, as places and subjects."""

    def __init__(self, prefix: str) -> None:
        self._topics = Topics(prefix, names=BUILTIN.names)
        anybody = Mac("0" * 12)
        self.front = len(self._topics.spell(ReportTopic(anybody, anybody, Kind.DFU))) - len(f"/{Kind.DFU}")
        """How long the front of a topic is."""
        self.places: dict[str, Place] = {}
        self._gateways: dict[int, int] = {}
        """Each number once, however many devices there are behind a gateway."""
        self.subjects: dict[str, Subject] = {}

    def read(self, text: str) -> tuple[Place, Subject]:
        """Read a topic, and remember its parts; raises a `WireError` for what is no report."""
        topic = self._topics.read(text)
        if not isinstance(topic, ReportTopic):
            raise MalformedTopic("topic", f"{shown(text)} is not that of a report")
        gateway = mac_number(topic.gateway)
        place = mac_number(topic.device), self._gateways.setdefault(gateway, gateway)
        about = subject(topic)
        if len(self.places) >= _PLACES:
            self.places.clear()
            self._gateways.clear()
        if len(self.subjects) >= _SUBJECTS:
            self.subjects.clear()
        self.places[text[: self.front]] = place
        self.subjects[text[self.front :]] = about
        return place, about
