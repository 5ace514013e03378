"""What a device is: model, variant and versions, from its properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.service.ingest.ingest_harness import MINUTE, NOON
from tests.service.ingest.messages import build_report, prop

if TYPE_CHECKING:
    from tests.service.ingest.ingest_harness import IngestHarness

pytestmark = pytest.mark.anyio

T = NOON - MINUTE


def facts(intake: IngestHarness) -> tuple[Any, ...]:
    known = intake.device()
    return known.model, known.variant, known.firmware, known.beta, known.hardware


@pytest.mark.rule("rest-46")
async def test_decoded_properties_tell_what_a_device_is(intake: IngestHarness) -> None:
    await intake.commit_flushed(
        prop("model-number", T, 0x0011),
        prop("variant", T, 4),
        prop("firmware-version", T, "2.5.0-beta.3"),
        prop("hardware-version", T, "1.2"),
    )
    assert facts(intake) == (0x0011, 4, "2.5.0", 3, "1.2.0")
    assert intake.device().name == "KKM B1 00a1"


@pytest.mark.rule("rest-46")
async def test_raw_properties_tell_the_same(intake: IngestHarness) -> None:
    await intake.commit_flushed(
        prop("8000", T, "2011"), prop("8007", T, "04"), prop("8001", T, "02050003"), prop("8002", T, "0102")
    )
    assert facts(intake) == (0x2011, 4, "2.5.0", 3, "1.2.0")


@pytest.mark.rule("rest-46", "report-50")
async def test_each_fact_has_its_own_time(intake: IngestHarness) -> None:
    await intake.commit_flushed(prop("8000", T, "2011"), prop("firmware-version", T + 5, "1.0.0"))
    await intake.commit_flushed(prop("8000", T + 2, "0011"), prop("firmware-version", T + 4, "0.9.0"))
    await intake.commit_flushed(prop("hardware-version", T - 9, "3.1"), prop("variant", T - 9, 4))
    await intake.commit_flushed(prop("8000", T + 1, "0018"), prop("hardware-version", T - 10, "2.0"))
    assert facts(intake) == (0x0011, 4, "1.0.0", 0, "3.1.0")


@pytest.mark.rule("report-50")
async def test_order_within_a_batch_does_not_count_either(intake: IngestHarness) -> None:
    await intake.commit_flushed(
        prop("8000", T + 2, "0011"), prop("8000", T, "2011"), prop("model-number", T + 1, 0x18)
    )
    assert intake.device().model == 0x0011


async def test_a_measurement_of_the_same_name_is_no_fact(intake: IngestHarness) -> None:
    await intake.commit_flushed(
        build_report("measurement-decoded/model-number", T, seq=1, value=0x2011),
        build_report("event-decoded/firmware-version", T, seq=1, value="1.0.0"),
    )
    assert facts(intake) == (0, 0, "0.0.0", 0, "0.0.0")


NONSENSE: list[Any] = [
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


async def test_values_that_cannot_be_tell_nothing_and_are_kept(intake: IngestHarness) -> None:
    await intake.commit_flushed(
        prop("8000", T, "2011"),
        prop("8007", T, "01"),
        prop("8001", T, "010203"),
        prop("8002", T, "0102"),
    )
    before = facts(intake)
    assert before == (0x2011, 1, "1.2.3", 0, "1.2.0")
    for at, value in enumerate(NONSENSE, start=1):
        names = ("model-number", "variant", "firmware-version", "hardware-version", "battery-level")
        await intake.commit(*(prop(name, T + at, value) for name in names))
    await intake.commit(prop("8000", T + 90, "20"), prop("8001", T + 90, "01"))
    await intake.ingest.flush()
    assert facts(intake) == before
    assert len(await intake.samples()) == 4 + 5 * len(NONSENSE) + 2
    assert intake.state().reported_at == T + 90
    assert intake.rejects() == []


async def test_nonsense_does_not_hide_what_came_before_it(intake: IngestHarness) -> None:
    await intake.commit_flushed(prop("model-number", T, 0x2011), prop("model-number", T + 1, "no number"))
    assert intake.device().model == 0x2011


async def test_what_a_raw_value_has_beyond_its_layout_takes_nothing_from_the_fact(
    intake: IngestHarness,
) -> None:
    await intake.commit_flushed(prop("8000", T, "2011ff"))
    assert intake.device().model == 0x2011


async def test_facts_survive_a_crash_before_they_are_written(intake: IngestHarness) -> None:
    await intake.commit(prop("8000", T, "2011"), prop("firmware-version", T, "1.2.3"), prop("8100", T, "40"))
    await intake.restart()
    await intake.ingest.flush()
    assert facts(intake) == (0x2011, 0, "1.2.3", 0, "0.0.0")
    assert intake.state().battery == 0x40
