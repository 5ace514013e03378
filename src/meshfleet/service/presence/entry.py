"""What presence has to write down, every other second."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from meshfleet.service.presence import store
from meshfleet.service.presence.model import Cause, Change

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.presence.presence import Presence


class News(NamedTuple):
    """What is to be written down."""

    changes: Sequence[Change]
    rhythms: Mapping[int, int]
    """Of devices, in milliseconds."""
    in_dfu: Mapping[int, int]
    """Addresses that were heard and may be known, each with its gateway."""
    outdated: int | None
    """What happened before this time nobody wants to know any more."""


class Presences:
    """News on their way to the database."""

    def __init__(self, presence: Presence, news: News, now: int) -> None:
        self._presence = presence
        self._news = news
        self._now = now
        self._result = store.Result()
        self._owners: Mapping[int, int] = {}

    @property
    def changes(self) -> Sequence[Change]:
        """Who came and went."""
        return self._news.changes

    def write(self, connection: Connection, added: Collection[int]) -> None:
        """Write changes of devices that are known, and remember which are not."""
        self._result = store.write(connection, [*self._news.changes, *self._of_added(added)])
        self._owners = store.owners(connection, self._news.in_dfu)
        store.write_rhythms(connection, list(self._news.rhythms.items()))
        if self._news.outdated is not None:
            store.forget(connection, self._news.outdated)

    def written(self) -> None:
        """Take over what only the database knew, and tell who wants to know."""
        for device in self._result.unknown:
            self._presence.forget(device)
        for address, device in self._owners.items():
            self._presence.hear(device, self._news.in_dfu[address], self._now)
        self._presence.changes.update(change.cause for change in self._result.written)
        self._tell()

    def _of_added(self, added: Collection[int]) -> Iterator[Change]:
        """Devices that were forgotten, and are here again: nobody noticed them go."""
        changing = {change.device for change in self._news.changes}
        for device in added:
            rhythm = self._presence.believes_in(device)
            if rhythm is not None and device not in changing:
                yield Change.came(device, self._now, Cause.HEARD, rhythm.gateway)

    def _tell(self) -> None:
        audience = self._presence.audience
        if audience is None:
            return
        together: dict[int, list[int]] = {}
        alone = []
        for each in self._result.written:
            if each.cause is Cause.GATEWAY:
                together.setdefault(each.gateway, []).append(each.device)
            else:
                alone.append(each)
        audience.devices_changed([change.device for change in alone])
        for gateway in {each.device for each in alone if each.device == each.gateway} | together.keys():
            audience.gateway_changed(gateway, devices=together.get(gateway, ()))
