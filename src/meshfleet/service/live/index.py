"""Who wants an event, found without asking everybody: the cost is what matches, not who listens."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final

from meshfleet.errors import TooManySubscriptions
from meshfleet.service.live.event import RESYNC
from meshfleet.wire.rest.live import LIVE_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshfleet.service.live.event import Event
    from meshfleet.service.live.listener import Listener
    from meshfleet.service.live.want import Want

_NAMED: Final = 50_000
"""Devices, gateways and jobs that all who listen for one account may name."""


class Index:
    """All wants, each with its listeners."""

    def __init__(self) -> None:
        self._holders: dict[Want, set[Listener]] = {}
        self._of_device: dict[int, set[Want]] = {}
        self._of_gateway: dict[int, set[Want]] = {}
        self._of_job: dict[int, set[Want]] = {}
        self._of_type: dict[str, set[Want]] = {about: set() for about in LIVE_TYPES}
        """Those that name neither devices nor gateways nor jobs."""
        self._named: Counter[tuple[str, str]] = Counter()

    def add(self, listener: Listener, want: Want) -> None:
        """Somebody wants this, unless their account wants too much."""
        if want.size and self._named[listener.account] + want.size > _NAMED:
            raise TooManySubscriptions(
                f"all who listen for {listener.actor.title} name more than {_NAMED} things"
            )
        self._named[listener.account] += want.size
        holders = self._holders.get(want)
        if holders is None:
            holders = self._holders[want] = set()
            self._enter(want)
        holders.add(listener)

    def remove(self, listener: Listener, want: Want) -> None:
        """Somebody does not want it any more."""
        self._named[listener.account] -= want.size
        if not self._named[listener.account]:
            del self._named[listener.account]
        holders = self._holders[want]
        holders.discard(listener)
        if not holders:
            del self._holders[want]
            self._strike(want)

    def holders(self, want: Want) -> set[Listener]:
        """Who wants this."""
        return self._holders[want]

    def takers(self, event: Event) -> Iterator[Want]:
        """The wants that take an event."""
        return (want for want in self._candidates(event) if want.takes(event))

    def _candidates(self, event: Event) -> Iterable[Want]:
        if event.type == RESYNC:
            return self._holders
        found: list[Iterable[Want]] = [self._of_type[event.about]]
        if event.job is not None:
            found.append(self._of_job.get(event.job, ()))
        if event.device is not None:
            found.append(self._of_device.get(event.device, ()))
        if event.gateway is None:
            found.append(set().union(*self._of_gateway.values()))
        elif event.former is None:
            found.append(self._of_gateway.get(event.gateway, ()))
        else:
            both = (self._of_gateway.get(each, ()) for each in (event.gateway, event.former))
            found.append(set().union(*both))
        return chain.from_iterable(found)

    def _enter(self, want: Want) -> None:
        for entries, key in self._entries(want):
            entries.setdefault(key, set()).add(want)

    def _strike(self, want: Want) -> None:
        for entries, key in self._entries(want):
            entries[key].discard(want)
            if not entries[key] and entries is not self._of_type:
                del entries[key]

    def _entries(self, want: Want) -> Iterator[tuple[dict[object, set[Want]], object]]:
        """Where a want is found: by what it names, of which few events are."""
        entries: object
        keys: Iterable[object]
        if want.jobs is not None:
            entries, keys = self._of_job, want.jobs
        elif want.devices is not None:
            entries, keys = self._of_device, want.devices
        elif want.gateways is not None:
            entries, keys = self._of_gateway, want.gateways
        else:
            entries, keys = self._of_type, LIVE_TYPES if want.types is None else want.types
        for key in keys:
            yield entries, key  # type: ignore[misc] # keys are those of the entries
