"""How long samples are kept."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias

Retention: TypeAlias = Mapping[int, int | None]
"""Milliseconds for each kind; None: for ever."""


def kinds_of(bits: int) -> frozenset[int]:
    """Kinds that are given as bits."""
    return frozenset(kind for kind in range(bits.bit_length()) if bits >> kind & 1)


def expired_kinds(retention: Retention, kinds: AbstractSet[int], age_from: int, now: int) -> frozenset[int]:
    """Which of some kinds nobody wants any more."""
    return frozenset(
        kind for kind in kinds if (kept := retention.get(kind)) is not None and age_from + kept <= now
    )
