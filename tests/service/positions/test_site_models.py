"""Calibrated models: how many anchors they have, when they are built again, and when they are forgotten."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import CalibrationPending
from meshfleet.rest.accounts import Role
from meshfleet.service.actor import Actor
from meshfleet.service.positions.first_positions import FirstPositions
from meshfleet.service.positions.model_anchors import MAX_ANCHORS, select_anchors
from meshfleet.service.positions.reading_store import AnchorLevel, ReadingStore
from meshfleet.service.positions.site_model import SiteModel
from meshfleet.service.positions.site_models import SiteModels
from meshfleet.service.sites.geometry import Anchor, Box, FloorGeometry, SiteGeometry
from meshfleet.service.sites.parameters import parse_site_id
from meshfleet.service.sites.store import delete_site
from tests.service.positions.synthetic_site import MINUTE, SyntheticSite, TruePlace

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService

NOW = 1_800_000_000_000
HOUR = 60 * MINUTE


def _place_lights(count: int) -> tuple[Anchor, ...]:
    """Return lights of a mesh, all with a place in a room of 5 x 4 m."""
    return tuple(Anchor(number, 0, number % 50 / 10, number % 40 / 10) for number in range(count))


def test_of_too_many_devices_with_a_place_those_that_receive_most_are_anchors() -> None:
    lights = _place_lights(MAX_ANCHORS + 100)
    assert select_anchors(lights[:MAX_ANCHORS], [{7}]) == lights[:MAX_ANCHORS]
    assert select_anchors(lights, [{7, 550, 9999}, {550}]) == (lights[7], lights[550])
    busy = {each.device for each in lights[100:]}
    assert select_anchors(lights, [busy, {each.device for each in lights}]) == lights[100:]
    assert len(select_anchors(lights, [])) == MAX_ANCHORS


def test_the_memory_of_a_model_does_not_grow_with_the_places_of_a_site() -> None:
    floors = (FloorGeometry(0, Box(0, 0, 5, 4), None),)
    lights = _place_lights(1_500)
    tracemalloc.start()
    model = SiteModel(SiteGeometry(1, 1, floors, lights), [], [], {})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30_000_000
    level = AnchorLevel(-60.0, 1)
    assert len(model.select_known({each.device: level for each in lights})) == MAX_ANCHORS


def _receive(readings: ReadingStore, site: SyntheticSite, device: int, *, minutes: int) -> None:
    """Let all anchors of a site receive a device in some minutes."""
    readings.add(
        [
            (1, device, 1, NOW - minute * MINUTE, -60 - minute, int(anchor, 16), 0)
            for minute in range(minutes)
            for anchor in site.anchors
        ],
        NOW,
    )


def test_the_next_calibration_of_a_small_site_waits_too_if_there_are_many(service: LiveService) -> None:
    sites = [SyntheticSite(service, number=number, anchors=3) for number in (1, 2)]
    readings, now = ReadingStore(retention_ms=HOUR), NOW
    readings.set_anchors(service.api.site_changes.anchors)
    models = SiteModels(service.database, readings, free_seconds=0.0, now=lambda: now)

    def get(site: SyntheticSite) -> SiteModel:
        number = parse_site_id(site.id)
        model = service.run_in_loop(models.get(number, service.api.site_changes.revisions[number]))
        assert model is not None
        return model

    first = [get(each) for each in sites]
    for number, site in enumerate(sites):
        _receive(readings, site, number, minutes=9)
    assert [get(each) is model for each, model in zip(sites, first, strict=True)] == [True, True]
    now += HOUR
    assert [get(each) is model for each, model in zip(sites, first, strict=True)] == [False, False]
    before = get(sites[1])
    sites[1].set_places({next(iter(sites[1].anchors)): TruePlace(1, 2)})
    assert get(sites[1]) is not before, "a change of places does not wait"


class _SlowStore(ReadingStore):
    """Store that runs a function while a model is being built."""

    def list_devices(self, site: int) -> set[int]:
        """Run the function once, then list the devices."""
        self.meanwhile()
        self.meanwhile = lambda: None
        return super().list_devices(site)

    meanwhile = staticmethod(lambda: None)


def test_a_model_is_forgotten_if_its_site_is_deleted_while_it_is_built(service: LiveService) -> None:
    site = SyntheticSite(service, number=3, anchors=3)
    number = parse_site_id(site.id)
    revision = service.api.site_changes.revisions[number]
    operator = Actor(name="ada", role=Role.OPERATOR, kind="user")
    readings = _SlowStore(retention_ms=HOUR)
    models = SiteModels(service.database, readings, now=lambda: NOW)

    def delete() -> None:
        service.database.write_now(delete_site, number, by=operator, now=NOW)
        models.forget(number)

    readings.meanwhile = delete
    service.run_in_loop(models.get(number, revision))
    assert service.run_in_loop(models.get(number, revision)) is None


def test_requests_wait_only_for_a_while_for_the_first_calibration(service: LiveService) -> None:
    site = SyntheticSite(service, number=4, anchors=3)
    number = parse_site_id(site.id)
    revision = service.api.site_changes.revisions[number]
    models = SiteModels(service.database, ReadingStore(retention_ms=HOUR), now=lambda: NOW)
    with pytest.raises(CalibrationPending, match="calibrated for the first time"):
        service.run_in_loop(models.get(number, revision, first_wait=0.0))
    model = service.run_in_loop(models.get(number, revision))
    assert model is not None, "the calibration goes on meanwhile"
    assert service.run_in_loop(models.get(number, revision, first_wait=0.0)) is model


def test_a_list_waits_for_some_of_many_new_positions_and_the_next_one_for_others(
    service: LiveService,
) -> None:
    site = SyntheticSite(service, number=5, anchors=3)
    number = parse_site_id(site.id)
    readings = ReadingStore(retention_ms=HOUR)
    readings.set_anchors(service.api.site_changes.anchors)
    devices = range(1, 151)
    for device in devices:
        _receive(readings, site, device, minutes=1)
    models = SiteModels(service.database, readings, now=lambda: NOW)
    model = service.run_in_loop(models.get(number, service.api.site_changes.revisions[number]))
    assert model is not None
    positions = FirstPositions(readings, lambda: NOW, max_seconds=0.0)

    def list_devices() -> set[int]:
        return {each.device for each in service.run_in_loop(positions.locate(model, devices))}

    first, second, third = list_devices(), list_devices(), list_devices()
    assert 0 < len(first) < len(second) < len(third)
    assert first < second < third == set(devices)
    for device in devices:
        _receive(readings, site, device, minutes=3)
    assert {
        each.located.fits[0].level.count for each in service.run_in_loop(positions.locate(model, [7]))
    } == {1}
    later = FirstPositions(readings, lambda: NOW)
    (found,) = service.run_in_loop(later.locate(model, [7]))
    assert found.located.fits[0].level.count > 1
