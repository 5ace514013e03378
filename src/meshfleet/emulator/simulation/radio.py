"""How well places hear each other (gateway-22).

The distance gives a mean, which walls and floors weaken. To it come a slow fading, as people and doors move,
and a fast one, which is another at every reading. Both fadings are 0 on average.
"""

from __future__ import annotations

from math import exp, log10
from typing import TYPE_CHECKING, Final

from meshfleet.emulator.simulation.noise import drift_noise, fast_noise

if TYPE_CHECKING:
    from meshfleet.emulator.simulation.site import SitePosition, Walls

MIN_AUDIBLE_DBM: Final = -97.0
"""dBm. What is weaker is not heard."""

MIN_USABLE_DBM: Final = -90.0
"""dBm. What is weaker is heard, but no link can be made."""

RSSI_AT_ONE_METER: Final = -59.0
PATH_LOSS_EXPONENT: Final = 2.2
WALL_LOSS_DB: Final = 3.0
"""dB lost in a wall."""
FLOOR_LOSS_DB: Final = 12.0
"""dB lost in a floor."""
FLOOR_HEIGHT_METERS: Final = 3.0

SLOW_FADING_DB: Final = 6.0
"""dB that the slow fading adds or takes at most."""
FAST_FADING_DB: Final = 4.0

_SLOW_FADING_SECONDS: Final = 1800.0
_MIN_DISTANCE_METERS: Final = 0.5
_MIN_DISTANCE_SQUARED: Final = _MIN_DISTANCE_METERS**2
_FAST_KEY: Final = 0x5BD1E995
"""Sets the fast fading of a pair apart from its slow one."""

_MIN_PACKET_LOSS: Final = 0.002
_STEEPNESS: Final = 2.5
_ODDS: Final = 2.217
"""Together with the steepness: a tenth of the packets is lost where a link is just usable."""


def estimate_mean_rssi(a: SitePosition, b: SitePosition, walls: Walls) -> float:
    """The RSSI in dBm that two places have on average."""
    floors = abs(a.floor - b.floor)
    squared = (a.x - b.x) ** 2 + (a.y - b.y) ** 2 + (FLOOR_HEIGHT_METERS * floors) ** 2
    # Half the logarithm of the square is the logarithm.
    path = 5.0 * PATH_LOSS_EXPONENT * log10(max(squared, _MIN_DISTANCE_SQUARED))
    return RSSI_AT_ONE_METER - path - FLOOR_LOSS_DB * floors - WALL_LOSS_DB * walls.count_between(a, b)


def compute_range(lost: float = 0.0) -> float:
    """Metres beyond which nobody is heard, when so many dB are lost on the way besides."""
    return float(10.0 ** ((RSSI_AT_ONE_METER - MIN_AUDIBLE_DBM - lost) / (10.0 * PATH_LOSS_EXPONENT)))


def slow_fading(pair: int, t: float) -> float:
    """The slow fading between two nodes, in dB."""
    return SLOW_FADING_DB * drift_noise(pair, t, _SLOW_FADING_SECONDS)


def fast_fading(pair: int, n: int) -> float:
    """The fast fading of the n-th reading, in dB."""
    return FAST_FADING_DB * fast_noise(pair ^ _FAST_KEY, n)


def packet_loss(rssi: float) -> float:
    """The probability that one packet is lost on a link."""
    return _MIN_PACKET_LOSS + (1.0 - _MIN_PACKET_LOSS) / (
        1.0 + exp((rssi - MIN_USABLE_DBM) / _STEEPNESS + _ODDS)
    )
