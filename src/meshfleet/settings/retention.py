"""How long the past is kept."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

_QUARTER: Final = 90 * 86_400
_MONTH: Final = 30 * 86_400


class Retention(Struct, frozen=True, kw_only=True):
    """Seconds for each kind of sample; None: for ever."""

    property: int | None = _QUARTER
    measurement: int | None = _QUARTER
    measurement_error: int | None = _QUARTER
    event: int | None = _QUARTER
    link: int | None = _MONTH
    """How parents heard devices, minute by minute."""
    heartbeat: int | None = _MONTH
    """The same for heartbeats."""
    connectivity: int | None = _QUARTER
    """When devices were connected."""
    request: int | None = _QUARTER
    """What was asked of devices, and what became of it."""
