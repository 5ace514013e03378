"""Extreme values are stored unchanged on both databases."""

from __future__ import annotations

import math
import sys

import pytest

from meshfleet.db.samples import NO_SEQ, SampleExtras
from tests.db.samples.store_harness import DEVICE, NOON, StoreHarness, build_row, to_samples

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]

NUMBERS = [
    0.0,
    -0.0,
    0.1,
    sys.float_info.max,
    -sys.float_info.max,
    sys.float_info.min,
    5e-324,
    math.inf,
    -math.inf,
    1 / 3,
    0,
    2**53,
    -(2**53),
]

TEXTS = [
    "",
    " ",
    'it\'s "so" \\ \\N \\. \\x41',
    "\t\n\r\x01\x1b\x7f",
    "🔧 Gerät e\u0301 \u200b\ufeff\uffff",
    "%s %(a)s ? :a $1",
    "'); DROP TABLE sample; --",
    "NULL",
    '{"a": [1, null]}',
]

LARGE = 64 * 1024
"""Size of the largest payload in bytes."""


async def test_extreme_numbers_are_stored_unchanged(harness: StoreHarness) -> None:
    harness.commit({DEVICE: [build_row(NOON + step, number) for step, number in enumerate(NUMBERS)]})
    for _ in range(2):
        numbers = [sample.number for sample in await harness.read()]
        assert numbers == NUMBERS
        assert str(numbers[1]) == "-0.0"
        harness.reopen()
        await harness.maintain()


async def test_nan_and_none_are_stored_unchanged(harness: StoreHarness) -> None:
    harness.commit({DEVICE: [build_row(number=math.nan), build_row(NOON + 1, None)]})
    await harness.maintain()
    first, second = [sample.number for sample in await harness.read()]
    assert first is not None
    assert math.isnan(first)
    assert second is None


async def test_unusual_texts_are_stored_unchanged(harness: StoreHarness) -> None:
    rows = [build_row(NOON + step, None, more=SampleExtras(text=text)) for step, text in enumerate(TEXTS)]
    rows += [
        build_row(NOON - 1 - step, None, more=SampleExtras(ext=text, clock=2))
        for step, text in enumerate(TEXTS)
    ]
    harness.commit({DEVICE: rows})
    for _ in range(2):
        assert await harness.read() == to_samples(sorted(rows, key=lambda row: row[0]))
        harness.reopen()
        await harness.maintain()


async def test_the_largest_values_are_stored_unchanged(harness: StoreHarness) -> None:
    extras = SampleExtras(
        "ä" * (LARGE // 2), "x" * LARGE, error=2**53, error_ext=-(2**53), clock=1, shift=-(2**60)
    )
    rows = [
        build_row(raw=bytes(range(256)) * (LARGE // 256), more=extras),
        build_row(NOON + 1, raw=b"", more=SampleExtras(text="")),
        build_row(NOON + 2, identifier=2**63 - 1, seq=255, gateway=2**48 - 1),
        build_row(NOON + 3, identifier=-(2**63), seq=NO_SEQ, gateway=0),
    ]
    harness.commit({2**48 - 1: rows, 0: rows})
    for _ in range(2):
        for device in (2**48 - 1, 0):
            assert await harness.read(device) == to_samples(rows)
        harness.reopen()
        await harness.maintain()


async def test_samples_of_the_same_time_are_distinguished_by_kind_identifier_and_seq(
    harness: StoreHarness,
) -> None:
    rows = [
        build_row(kind=kind, identifier=identifier, seq=seq)
        for kind in range(6)
        for identifier in (-1, 0, 1)
        for seq in (NO_SEQ, 0, 1, 255)
    ]
    harness.commit({DEVICE: rows[::-1]})
    await harness.maintain()
    assert await harness.read() == to_samples(rows)
    assert await harness.read(identifier=-1, kinds=frozenset({3})) == to_samples(rows[36:40])
