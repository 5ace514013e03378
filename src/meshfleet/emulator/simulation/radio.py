"""Radio model: RSSI and packet loss between two positions (gateway-22).

The distance gives a mean RSSI, reduced by walls and floors. Slow fading simulates moving people and doors;
fast fading is different in every reading. Both kinds of fading are added to the mean RSSI, and are 0 on
average.
"""

from __future__ import annotations

from math import exp, log10
from typing import TYPE_CHECKING, Final

from meshfleet.emulator.simulation.noise import drift_noise, fast_noise

if TYPE_CHECKING:
    from meshfleet.emulator.simulation.site import SitePosition, Walls

MIN_AUDIBLE_DBM: Final = -97.0
"""Minimum RSSI in dBm with which advertisements are received (inclusive)."""

MIN_USABLE_DBM: Final = -90.0
"""Minimum RSSI in dBm with which a mesh link can be established (inclusive)."""

DEFAULT_POWER_DBM: Final = 4
"""Transmit power in dBm of a device whose property 9802 has not been changed."""

RSSI_AT_ONE_METER: Final = -59.0
"""Mean RSSI in dBm at a distance of one meter, with the default transmit power."""
PATH_LOSS_EXPONENT: Final = 2.2
"""Exponent of the log-distance path loss model."""
WALL_LOSS_DB: Final = 3.0
"""Signal loss in dB per wall between two nodes."""
FLOOR_LOSS_DB: Final = 12.0
"""Signal loss in dB per floor between two nodes."""
FLOOR_HEIGHT_METERS: Final = 3.0

SLOW_FADING_DB: Final = 6.0
"""Maximum of the slow fading in dB, positive or negative."""
FAST_FADING_DB: Final = 4.0
"""Maximum of the fast fading in dB, positive or negative."""

_SLOW_FADING_SECONDS: Final = 1800.0
_MIN_DISTANCE_METERS: Final = 0.5
_MIN_DISTANCE_SQUARED: Final = _MIN_DISTANCE_METERS**2
_FAST_KEY: Final = 0x5BD1E995
"""Mask for noise keys, so that the fast fading of two nodes is independent of their slow fading."""

_MIN_PACKET_LOSS: Final = 0.002
_STEEPNESS: Final = 2.5
_ODDS: Final = 2.217
"""Offset of the packet loss curve, chosen so that a just usable link loses a tenth of its packets."""


def estimate_mean_rssi(a: SitePosition, b: SitePosition, walls: Walls) -> float:
    """Return the mean RSSI in dBm between two positions."""
    floors = abs(a.floor - b.floor)
    distance_squared = (a.x - b.x) ** 2 + (a.y - b.y) ** 2 + (FLOOR_HEIGHT_METERS * floors) ** 2
    # Half the logarithm of the square is the logarithm: no square root is needed.
    path_loss = 5.0 * PATH_LOSS_EXPONENT * log10(max(distance_squared, _MIN_DISTANCE_SQUARED))
    level = (
        RSSI_AT_ONE_METER
        - path_loss
        - FLOOR_LOSS_DB * floors
        - WALL_LOSS_DB * walls.count_walls_between(a, b)
    )
    return level - walls.sum_segment_losses(a, b) if walls.segments else level


def compute_range(extra_loss_db: float = 0.0) -> float:
    """Return the radio range in meters if walls or floors take `extra_loss_db` dB of the signal."""
    max_path_loss_db = RSSI_AT_ONE_METER - MIN_AUDIBLE_DBM - extra_loss_db
    return float(10.0 ** (max_path_loss_db / (10.0 * PATH_LOSS_EXPONENT)))


def compute_slow_fading(pair: int, sim_time: float) -> float:
    """Return the slow fading between two nodes in dB at a simulated time.

    `pair` is the noise keys of the two nodes, combined with XOR.
    """
    return SLOW_FADING_DB * drift_noise(pair, sim_time, _SLOW_FADING_SECONDS)


def compute_fast_fading(pair: int, n: int) -> float:
    """Return the fast fading of the `n`th RSSI reading between two nodes in dB.

    `pair` is the noise keys of the two nodes, combined with XOR.
    """
    return FAST_FADING_DB * fast_noise(pair ^ _FAST_KEY, n)


def compute_packet_loss(rssi: float) -> float:
    """Return the probability that one packet is lost on a link with this RSSI in dBm."""
    return _MIN_PACKET_LOSS + (1.0 - _MIN_PACKET_LOSS) / (
        1.0 + exp((rssi - MIN_USABLE_DBM) / _STEEPNESS + _ODDS)
    )
