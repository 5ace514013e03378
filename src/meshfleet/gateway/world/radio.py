"""How well places hear each other (gateway-22).

The distance gives a mean, which walls and floors weaken. To it come a slow fading, as people and doors move,
and a fast one, which is another at every reading. Both fadings are 0 on average.
"""

from __future__ import annotations

from math import exp, log10
from typing import TYPE_CHECKING, Final

from meshfleet.gateway.world.noise import drift, flicker

if TYPE_CHECKING:
    from meshfleet.gateway.world.places import Place, Walls

HEARD: Final = -97.0
"""dBm. What is weaker is not heard."""

USABLE: Final = -90.0
"""dBm. What is weaker is heard, but no link can be made."""

AT_ONE_METRE: Final = -59.0
EXPONENT: Final = 2.2
WALL: Final = 3.0
"""dB lost in a wall."""
FLOOR: Final = 12.0
"""dB lost in a floor."""
FLOOR_HEIGHT: Final = 3.0

SLOW: Final = 6.0
"""dB that the slow fading adds or takes at most."""
FAST: Final = 4.0

_SLOWNESS: Final = 1800.0
_NEAREST: Final = 0.5
_NEAREST_SQUARED: Final = _NEAREST**2
_FAST_KEY: Final = 0x5BD1E995
"""Sets the fast fading of a pair apart from its slow one."""

_LEAST_LOSS: Final = 0.002
_STEEPNESS: Final = 2.5
_ODDS: Final = 2.217
"""Together with the steepness: a tenth of the packets is lost where a link is just usable."""


def mean(a: Place, b: Place, walls: Walls) -> float:
    """The RSSI in dBm that two places have on average."""
    floors = abs(a.floor - b.floor)
    squared = (a.x - b.x) ** 2 + (a.y - b.y) ** 2 + (FLOOR_HEIGHT * floors) ** 2
    # Half the logarithm of the square is the logarithm.
    path = 5.0 * EXPONENT * log10(max(squared, _NEAREST_SQUARED))
    return AT_ONE_METRE - path - FLOOR * floors - WALL * walls.between(a, b)


def reach(lost: float = 0.0) -> float:
    """Metres beyond which nobody is heard, when so many dB are lost on the way besides."""
    return float(10.0 ** ((AT_ONE_METRE - HEARD - lost) / (10.0 * EXPONENT)))


def slow(pair: int, t: float) -> float:
    """The slow fading between two nodes, in dB."""
    return SLOW * drift(pair, t, _SLOWNESS)


def fast(pair: int, n: int) -> float:
    """The fast fading of the n-th reading, in dB."""
    return FAST * flicker(pair ^ _FAST_KEY, n)


def loss(rssi: float) -> float:
    """The probability that one packet is lost on a link."""
    return _LEAST_LOSS + (1.0 - _LEAST_LOSS) / (1.0 + exp((rssi - USABLE) / _STEEPNESS + _ODDS))
