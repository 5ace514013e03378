"""Who is told what changed, and what Prometheus is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.service.presence.figures import PresenceFigures
from tests.service.ingest.intake import SECOND
from tests.service.ingest.messages import A, B, D, E, heartbeat, number
from tests.service.presence.watched import settled

if TYPE_CHECKING:
    from tests.service.presence.watched import Watched

pytestmark = pytest.mark.anyio


@pytest.mark.rule("rest-77", "rest-191")
async def test_the_audience_hears_of_a_gateway_once_with_the_number_of_its_devices(in_file: Watched) -> None:
    await settled(in_file, A)
    assert in_file.audience.gateways == [(number(A), 0)]
    assert in_file.audience.devices == [[number(A)], [number(D), number(E)]]
    in_file.arrive()
    await in_file.go_on()
    in_file.arrive(A)
    await in_file.go_on()
    assert in_file.audience.gateways[1:] == [(number(A), 2), (number(A), 2)]
    assert in_file.audience.companions[1:] == [[number(D), number(E)]] * 2
    assert in_file.audience.devices[2:] == [[number(A)], [number(A)]]
    await in_file.idle(60)
    assert len(in_file.audience.gateways) == 3


async def test_it_hears_of_devices_whose_gateway_nobody_knows_any_more(in_file: Watched) -> None:
    await settled(in_file, A)
    in_file.forget(A)
    in_file.arrive()
    await in_file.go_on()
    assert in_file.audience.gateways[1:] == [(number(A), 2)]
    assert in_file.brief()[-1] == (False, "gateway")


async def test_it_hears_nothing_when_nothing_changed(in_file: Watched) -> None:
    await settled(in_file, A)
    before = (list(in_file.audience.devices), list(in_file.audience.gateways))
    for _ in range(5):
        in_file.arrive(A)
        await in_file.go_on(heartbeat(in_file.intake.now + SECOND))
    assert (in_file.audience.devices, in_file.audience.gateways) == before


async def test_figures_count_what_was_written(in_file: Watched) -> None:
    await settled(in_file, A, B)
    in_file.arrive(B)
    await in_file.go_on()
    now = in_file.intake.now
    for gateway, ahead in {A: 7 * SECOND, B: -9500}.items():
        in_file.presence.clocks.measure(number(gateway), now, now, now + ahead)
    shown = {
        (sample.name, sample.labels.get("cause")): sample.value
        for metric in PresenceFigures(in_file.presence).collect()
        for sample in metric.samples
    }
    changed = "meshfleet_connectivity_changes_total"
    assert shown[changed, "heard"] == 2
    assert shown[changed, "gateway"] == 2
    assert shown[changed, "connection"] == 3
    assert shown["meshfleet_gateways_connected", None] == 1
    assert shown["meshfleet_clocks_wrong", None] == 2
    assert shown["meshfleet_clock_offset_max_seconds", None] == 9.5
