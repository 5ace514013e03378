"""Chance that can be repeated: a number that depends on a key and a count, and on nothing else.

A stream of random numbers would be disturbed by every request that comes at another moment. Here the value
of a device at its n-th beat is the same in every run with the same seed, whatever happened before.
"""

from __future__ import annotations

from hashlib import blake2s
from math import inf, log, pi, sin

_MASK = 0xFFFFFFFF
_SPREAD = 0x9E3779B1
_RANGE = 1 << 32
_GOLDEN = 1.618034
"""Two waves with this between them never meet again."""


def derive_noise_key(*parts: object) -> int:
    """A key for the noise of one thing, from all that names it."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(blake2s(text, digest_size=4).digest(), "big")


def noise_bits(key: int, n: int) -> int:
    """32 bits for the n-th time."""
    mixed = (key ^ n * _SPREAD) & _MASK
    mixed = (mixed >> 16 ^ mixed) * 0x7FEB352D & _MASK
    mixed = (mixed >> 15 ^ mixed) * 0x846CA68B & _MASK
    return mixed >> 16 ^ mixed


def uniform_noise(key: int, n: int) -> float:
    """Between 0 and 1, each value as likely as the other."""
    return noise_bits(key, n) / _RANGE


def triangular_noise(key: int, n: int) -> float:
    """Between -1 and 1, around 0 more often: the sum of two dice."""
    both = noise_bits(key, n)
    return ((both >> 16) + (both & 0xFFFF)) / 0xFFFF - 1.0


def fast_noise(key: int, n: int) -> float:
    """Between -1 and 1, each value as likely as the other: the cheap die, for what comes often."""
    return ((key ^ n * _SPREAD) * 0x7FEB352D >> 16 & 0xFFFF) / 0x7FFF - 1.0


def drift_noise(key: int, t: float, period: float) -> float:
    """Between -1 and 1, around 0 more often, changing slowly: a swing up or down takes about a period.

    Two waves instead of noise: it is asked for with every report.
    """
    at = pi * t / period * (1.0 + (key & 0xFF) / 256.0) + (key >> 8)
    return (sin(at) + sin(_GOLDEN * at)) / 2.0


def exponential_delay(key: int, n: int, mean: float) -> float:
    """How long until something that happens once in `mean` seconds happens the n-th time."""
    return -mean * log(1.0 - uniform_noise(key, n)) if mean < inf else inf
