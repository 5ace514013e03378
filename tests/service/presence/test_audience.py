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


@pytest.mark.rule("rest-77")
async def test_the_audience_hears_of_a_gateway_once_with_the_number_of_its_devices(watched: Watched) -> None:
    await settled(watched, A)
    assert watched.audience.gateways == [(number(A), 0)]
    assert watched.audience.devices == [[number(A)], [number(D), number(E)]]
    watched.arrive()
    await watched.go_on()
    watched.arrive(A)
    await watched.go_on()
    assert watched.audience.gateways[1:] == [(number(A), 2), (number(A), 2)]
    assert watched.audience.devices[2:] == [[number(A)], [number(A)]]
    await watched.idle(60)
    assert len(watched.audience.gateways) == 3


async def test_it_hears_of_devices_whose_gateway_nobody_knows_any_more(watched: Watched) -> None:
    await settled(watched, A)
    watched.forget(A)
    watched.arrive()
    await watched.go_on()
    assert watched.audience.gateways[1:] == [(number(A), 2)]
    assert watched.brief()[-1] == (False, "gateway")


async def test_it_hears_nothing_when_nothing_changed(watched: Watched) -> None:
    await settled(watched, A)
    before = (list(watched.audience.devices), list(watched.audience.gateways))
    for _ in range(5):
        watched.arrive(A)
        await watched.go_on(heartbeat(watched.intake.now + SECOND))
    assert (watched.audience.devices, watched.audience.gateways) == before


async def test_figures_count_what_was_written(watched: Watched) -> None:
    await settled(watched, A, B)
    watched.arrive(B)
    await watched.go_on()
    shown = {
        (sample.name, sample.labels.get("cause")): sample.value
        for metric in PresenceFigures(watched.presence).collect()
        for sample in metric.samples
    }
    changed = "meshfleet_connectivity_changes_total"
    assert shown[changed, "heard"] == 2
    assert shown[changed, "gateway"] == 2
    assert shown[changed, "connection"] == 3
    assert shown["meshfleet_gateways_connected", None] == 1
    assert shown["meshfleet_clocks_wrong", None] == 0
