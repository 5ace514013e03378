"""Parts of a service from which a publisher reads."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from meshfleet.service import clock
from meshfleet.service.api import RestApi
from meshfleet.service.homeassistant.publisher import PublisherSources
from meshfleet.service.reload import SettingsReloader
from meshfleet.service.runtime import open_service_samples
from meshfleet.service.systemd import SystemdNotifier
from meshfleet.settings.model import Settings
from tests.service.http.running_service import QUICK_HASHER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database


@pytest.fixture
def sources(sqlite_database: Database, tmp_path: Path) -> Iterator[PublisherSources]:
    """Create the parts of a service without devices, which is not started."""
    settings = Settings(data=tmp_path)
    reloader = SettingsReloader(settings, lambda: settings, SystemdNotifier({}))
    with closing(open_service_samples(sqlite_database, settings)) as samples:
        api = RestApi(sqlite_database, settings, samples, reloader=reloader, hasher=QUICK_HASHER)
        yield PublisherSources(
            sqlite_database, samples, api.traffic, api.request_facade, settings.url, clock.now
        )
