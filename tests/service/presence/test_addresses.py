"""Addresses that nobody knows, any more or at all: those of devices in DFU mode, and forgotten ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.service.devices import registry
from meshfleet.service.devices.model import Sighting
from meshfleet.wire.ids import Mac
from tests.service.ingest.intake import DAY, NOON, SECOND
from tests.service.ingest.messages import A, D, E, dfu, heartbeat, number, temperature
from tests.service.presence.watched import settled

if TYPE_CHECKING:
    from tests.service.presence.watched import Watched

pytestmark = pytest.mark.anyio

ABOVE = f"{number(D) + 1:012x}"
"""The address behind that of the device."""

UNKNOWN = "c0ffee00ffff"


@pytest.mark.rule("report-47")
async def test_an_unknown_address_in_dfu_mode_leaves_nothing(watched: Watched) -> None:
    watched.arrive(A)
    for _ in range(5):
        await watched.go_on(dfu(watched.intake.now + SECOND, device=UNKNOWN), seconds=5)
    assert (watched.intake.device(UNKNOWN), watched.history(UNKNOWN)) == (None, [])
    assert watched.presence.believes_in(number(UNKNOWN)) is None
    assert number(UNKNOWN) not in watched.presence._roster.rhythms  # noqa: SLF001 # nothing in memory either


@pytest.mark.rule("report-46")
async def test_the_address_behind_keeps_a_device_connected_and_brings_it_back(watched: Watched) -> None:
    await settled(watched, A)
    for _ in range(40):
        await watched.go_on(heartbeat(watched.intake.now + 25 * SECOND), seconds=25)
    for _ in range(40):
        await watched.go_on(dfu(watched.intake.now + 10 * SECOND, device=ABOVE), seconds=10)
    assert watched.brief() == [(True, "heard")]
    await watched.idle(200)
    assert watched.brief() == [(True, "heard"), (False, "silent")]
    await watched.go_on(dfu(watched.intake.now, device=ABOVE))
    await watched.go_on()
    assert watched.brief()[2:] == [(True, "heard")]
    assert (watched.intake.device(ABOVE), watched.history(ABOVE)) == (None, [])
    assert watched.agrees(A, D)


@pytest.mark.rule("report-46")
async def test_it_does_so_after_a_start_which_remembers_only_who_is_connected(watched: Watched) -> None:
    await settled(watched, A)
    watched.arrive()
    await watched.go_on()
    await watched.restart()
    watched.arrive(A)
    await watched.go_on(dfu(watched.intake.now, device=ABOVE))
    await watched.go_on()
    assert watched.brief()[-1] == (True, "heard")
    assert watched.agrees(D)


@pytest.mark.rule("report-46")
async def test_a_device_that_has_the_address_behind_is_the_one_that_is_heard(watched: Watched) -> None:
    """Though only the database knows it, and the one below is connected."""
    await settled(watched, A)
    watched.intake.database.write_now(
        registry.observe, [Sighting(device=Mac(ABOVE), at=NOON - DAY, heard=False)]
    )
    at = watched.presence.believes_in(number(D)).at  # type: ignore[union-attr] # it is connected
    await watched.go_on(dfu(watched.intake.now, device=ABOVE))
    await watched.go_on()
    assert watched.brief(ABOVE) == [(True, "heard")]
    assert watched.presence.believes_in(number(D)).at == at  # type: ignore[union-attr] # it still is


# --- Devices that are forgotten ---


@pytest.mark.rule("rest-51")
async def test_a_forgotten_device_that_is_heard_again_is_connected_again(watched: Watched) -> None:
    await settled(watched, A)
    watched.forget()
    await watched.go_on(temperature(watched.intake.now + SECOND))
    assert watched.connected() == (True, watched.intake.now)
    assert watched.brief() == [(True, "heard"), (True, "heard")], "its history stays"
    assert watched.agrees(D, E)


async def test_a_forgotten_device_that_is_not_heard_again_leaves_memory(watched: Watched) -> None:
    await settled(watched, A)
    watched.forget()
    watched.arrive()
    await watched.go_on()
    assert watched.brief() == [(True, "heard")]
    assert number(D) not in watched.presence._roster.rhythms  # noqa: SLF001 # what this is about
    watched.arrive(A)
    await watched.go_on()
    assert watched.intake.device() is None
    await watched.go_on(temperature(watched.intake.now))
    assert watched.connected()[0] is True
    assert watched.agrees(D)
