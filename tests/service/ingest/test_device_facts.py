"""Model, variant and versions of a device from its properties."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.ingest.ingest_harness import MINUTE, NOON, IngestHarness
from tests.service.ingest.messages import build_report, prop

pytestmark = pytest.mark.anyio

T = NOON - MINUTE


def load_facts(harness: IngestHarness) -> tuple[Any, ...]:
    device = harness.device()
    return device.model, device.variant, device.firmware, device.beta, device.hardware


@pytest.mark.rule("rest-46")
async def test_decoded_properties_describe_the_device(harness: IngestHarness) -> None:
    await harness.commit_flushed(
        prop("model-number", T, 0x0011),
        prop("variant", T, 4),
        prop("firmware-version", T, "2.5.0-beta.3"),
        prop("hardware-version", T, "1.2"),
    )
    assert load_facts(harness) == (0x0011, 4, "2.5.0", 3, "1.2.0")
    assert harness.device().name == "KKM B1 00a1"


@pytest.mark.rule("rest-46")
async def test_raw_properties_describe_the_device(harness: IngestHarness) -> None:
    await harness.commit_flushed(
        prop("8000", T, "2011"), prop("8007", T, "04"), prop("8001", T, "02050003"), prop("8002", T, "0102")
    )
    assert load_facts(harness) == (0x2011, 4, "2.5.0", 3, "1.2.0")


@pytest.mark.rule("rest-46", "report-50")
async def test_each_fact_has_its_own_time(harness: IngestHarness) -> None:
    await harness.commit_flushed(prop("8000", T, "2011"), prop("firmware-version", T + 5, "1.0.0"))
    await harness.commit_flushed(prop("8000", T + 2, "0011"), prop("firmware-version", T + 4, "0.9.0"))
    await harness.commit_flushed(prop("hardware-version", T - 9, "3.1"), prop("variant", T - 9, 4))
    await harness.commit_flushed(prop("8000", T + 1, "0018"), prop("hardware-version", T - 10, "2.0"))
    assert load_facts(harness) == (0x0011, 4, "1.0.0", 0, "3.1.0")


@pytest.mark.rule("report-50")
async def test_the_order_within_a_batch_does_not_matter(harness: IngestHarness) -> None:
    await harness.commit_flushed(
        prop("8000", T + 2, "0011"), prop("8000", T, "2011"), prop("model-number", T + 1, 0x18)
    )
    assert harness.device().model == 0x0011


async def test_a_measurement_of_the_same_name_does_not_describe_the_device(harness: IngestHarness) -> None:
    await harness.commit_flushed(
        build_report("measurement-decoded/model-number", T, seq=1, value=0x2011),
        build_report("event-decoded/firmware-version", T, seq=1, value="1.0.0"),
    )
    assert load_facts(harness) == (0, 0, "0.0.0", 0, "0.0.0")


INVALID_VALUES: list[Any] = [
    None,
    True,
    -1,
    0x10000,
    1.5,
    2**70,
    "",
    "2011",
    "a.b.c",
    "1.2.3-beta.256",
    [1],
    {"a": 2**70},
]


async def test_invalid_values_are_stored_but_not_applied(harness: IngestHarness) -> None:
    await harness.commit_flushed(
        prop("8000", T, "2011"),
        prop("8007", T, "01"),
        prop("8001", T, "010203"),
        prop("8002", T, "0102"),
    )
    before = load_facts(harness)
    assert before == (0x2011, 1, "1.2.3", 0, "1.2.0")
    for at, value in enumerate(INVALID_VALUES, start=1):
        names = ("model-number", "variant", "firmware-version", "hardware-version", "battery-level")
        await harness.commit(*(prop(name, T + at, value) for name in names))
    await harness.commit(prop("8000", T + 90, "20"), prop("8001", T + 90, "01"))
    await harness.ingest.flush()
    assert load_facts(harness) == before
    assert len(await harness.samples()) == 4 + 5 * len(INVALID_VALUES) + 2
    assert harness.state().reported_at == T + 90
    assert harness.rejects() == []


async def test_an_invalid_value_does_not_replace_an_earlier_one(harness: IngestHarness) -> None:
    await harness.commit_flushed(prop("model-number", T, 0x2011), prop("model-number", T + 1, "no number"))
    assert harness.device().model == 0x2011


async def test_extra_bytes_of_a_raw_value_are_ignored(
    harness: IngestHarness,
) -> None:
    await harness.commit_flushed(prop("8000", T, "2011ff"))
    assert harness.device().model == 0x2011


async def test_facts_survive_a_crash_before_the_flush(harness: IngestHarness) -> None:
    await harness.commit(prop("8000", T, "2011"), prop("firmware-version", T, "1.2.3"), prop("8100", T, "40"))
    await harness.restart()
    await harness.ingest.flush()
    assert load_facts(harness) == (0x2011, 0, "1.2.3", 0, "0.0.0")
    assert harness.state().battery == 0x40
