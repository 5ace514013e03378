"""Who was heard, and through whom."""

from __future__ import annotations

from meshfleet.service.presence.rhythm import Rhythm


class Roster:
    """Devices with their rhythms, and by the gateways through which they were last heard."""

    def __init__(self) -> None:
        self.rhythms: dict[int, Rhythm] = {}
        self._behind: dict[int, set[int]] = {}

    def behind(self, gateway: int) -> list[int]:
        """The devices that were last heard through a gateway."""
        return list(self._behind.get(gateway, ()))

    def meet(self, device: int, gateway: int, now: int) -> Rhythm:
        """A device is new."""
        rhythm = self.rhythms[device] = Rhythm(now, gateway, connected=False)
        self._behind.setdefault(gateway, set()).add(device)
        return rhythm

    def hear(self, device: int, gateway: int, now: int) -> None:
        """A device is heard through a gateway, perhaps through another than before."""
        rhythm = self.rhythms[device]
        self._move(device, rhythm.gateway, gateway)
        rhythm.hear(gateway, now)

    def fall_back(self, device: int, present: dict[int, int], now: int) -> bool:
        """The gateway of a device has gone: whether another one that is there hears it."""
        rhythm = self.rhythms[device]
        before = rhythm.gateway
        if not rhythm.fall_back(present, now):
            return False
        self._move(device, before, rhythm.gateway)
        return True

    def forget(self, device: int) -> None:
        """Nobody knows a device any more."""
        rhythm = self.rhythms.pop(device, None)
        if rhythm is not None:
            self._leave(device, rhythm.gateway)

    def witness(self, device: int, gateway: int) -> int:
        """Who tells the time of a gateway, if others could as well."""
        behind = self._behind.get(gateway, set())
        others = len(behind) - (device in behind) - (gateway in behind)
        return device if others and device != gateway else 0

    def _move(self, device: int, before: int, after: int) -> None:
        if before != after:
            self._leave(device, before)
            self._behind.setdefault(after, set()).add(device)

    def _leave(self, device: int, gateway: int) -> None:
        behind = self._behind[gateway]
        behind.discard(device)
        if not behind:
            del self._behind[gateway]
