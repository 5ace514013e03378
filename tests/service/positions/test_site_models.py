"""Calibrated models: when they are forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.rest.accounts import Role
from meshfleet.service.actor import Actor
from meshfleet.service.positions.reading_store import ReadingStore
from meshfleet.service.positions.site_models import SiteModels
from meshfleet.service.sites.parameters import parse_site_id
from meshfleet.service.sites.store import delete_site
from tests.service.positions.synthetic_site import MINUTE, SyntheticSite

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService

NOW = 1_800_000_000_000
HOUR = 60 * MINUTE


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
