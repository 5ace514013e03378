"""Fixtures: a service with a populated synthetic site, shared by a module, and services for single tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.databases import fresh_database
from tests.service.live.conftest import service_on_each_database
from tests.service.live.live_service import LiveService, run_live_service
from tests.service.positions.synthetic_site import SyntheticSite

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["service_on_each_database"]


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest) -> Iterator[LiveService]:
    """Run a service with ingest, shared by the tests of a module."""
    with run_live_service(fresh_database(request, "sqlite")) as service:
        yield service


@pytest.fixture(scope="module")
def site(service: LiveService) -> SyntheticSite:
    """Build a site with devices at random places, which positions are calibrated with."""
    site = SyntheticSite(service, number=1)
    site.populate(25, minutes=1)
    return site
