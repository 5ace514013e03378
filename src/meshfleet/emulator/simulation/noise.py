"""Repeatable randomness: numbers that depend only on a key and a count.

A stream of random numbers would change with every request that arrives at another time. With this module the
value of a device at its n-th heartbeat is equal in every run with the same seed, whatever happened before.
"""

from __future__ import annotations

from hashlib import blake2s
from math import inf, log, pi, sin

_MASK = 0xFFFFFFFF
_SPREAD = 0x9E3779B1
_RANGE = 1 << 32
_GOLDEN = 1.618034
"""Ratio of the frequencies of two sine waves whose sum does not repeat."""


def derive_noise_key(*parts: object) -> int:
    """Derive the noise key of an object, a 32-bit integer, from the parts that identify the object."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(blake2s(text, digest_size=4).digest(), "big")


def noise_bits(key: int, n: int) -> int:
    """Return 32 pseudo-random bits, which are always equal for the same key and count `n`."""
    bits = (key ^ n * _SPREAD) & _MASK
    bits = (bits >> 16 ^ bits) * 0x7FEB352D & _MASK
    bits = (bits >> 15 ^ bits) * 0x846CA68B & _MASK
    return bits >> 16 ^ bits


def uniform_noise(key: int, n: int) -> float:
    """Return a repeatable pseudo-random number from 0 to below 1 with uniform distribution."""
    return noise_bits(key, n) / _RANGE


def triangular_noise(key: int, n: int) -> float:
    """Return a repeatable pseudo-random number from -1 to 1 with triangular distribution around 0."""
    bits = noise_bits(key, n)
    return ((bits >> 16) + (bits & 0xFFFF)) / 0xFFFF - 1.0


def fast_noise(key: int, n: int) -> float:
    """Return a repeatable number from -1 to 1 with roughly uniform distribution, computed quickly."""
    return ((key ^ n * _SPREAD) * 0x7FEB352D >> 16 & 0xFFFF) / 0x7FFF - 1.0


def drift_noise(key: int, sim_time: float, period: float) -> float:
    """Return a repeatable number from -1 to 1, mostly near 0, that changes slowly with the simulated time.

    Half a swing takes about `period` seconds. The number is the sum of two sine waves.
    """
    phase = pi * sim_time / period * (1.0 + (key & 0xFF) / 256.0) + (key >> 8)
    return (sin(phase) + sin(_GOLDEN * phase)) / 2.0


def exponential_delay(key: int, n: int, mean: float) -> float:
    """Return a repeatable random delay in seconds between events, exponentially distributed around `mean`."""
    return -mean * log(1.0 - uniform_noise(key, n)) if mean < inf else inf
