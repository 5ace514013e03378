"""What a write does to a device: properties take the value, command properties act."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.errors import UndecodableValue, UnencodableValue
from meshfleet.gateway.requests.commands import ACTS, Commands, Refusal
from meshfleet.gateway.world.effects import fits, take_effect
from meshfleet.wire.codes import Status

if TYPE_CHECKING:
    from meshfleet.gateway.core import Core
    from meshfleet.gateway.life import Life
    from meshfleet.gateway.updates import Updates
    from meshfleet.gateway.world.device import Device
    from meshfleet.wire.ids import Identifier

_TRIGGERS: Final = frozenset(("8300", "8301", "8302"))
"""Commands that take no value: the write itself is the word (request-18)."""


class Writing:
    """Writes to the devices of one gateway."""

    def __init__(self, core: Core, life: Life, updates: Updates) -> None:
        self._core = core
        self._life = life
        self._commands = Commands(core, life, updates)

    def write(self, device: Device, identifier: Identifier, raw: bytes | None, t: float) -> Refusal | None:
        """Write a value that the device has and allows to be written; None as value is NULL."""
        if raw is None and identifier not in _TRIGGERS:
            return Refusal(Status.INVALID_VALUE, f"{identifier} cannot be written with NULL")
        value = raw or b""
        if refusal := self._misfit(identifier, value):
            return refusal
        if act := ACTS.get(identifier):
            return act(self._commands, device, value, t)
        if not fits(device, identifier, value):
            return Refusal(Status.INVALID_VALUE, f"{device.product.name} does not take this value")
        self._life.change(device, identifier, value, t)
        take_effect(device, identifier, value)
        return None

    def _misfit(self, identifier: Identifier, value: bytes) -> Refusal | None:
        """Check a value against its layout, where that is known. It may not be longer here."""
        entry = self._core.catalogue.find(identifier)
        if entry is None or entry.layout is None:
            return None
        try:
            decoded = entry.decode(value)
            if decoded.ext is not None:
                return Refusal(Status.INVALID_VALUE, f"{entry.name} takes no more bytes than its layout has")
            entry.encode(decoded.value)  # what is read as it is may still be refused when written (value-44)
        except (UndecodableValue, UnencodableValue) as exc:
            return Refusal(Status.INVALID_VALUE, exc.reason)
        return None
