"""Settings of requests and retention that are changed while the service runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.settings import ListenAddress, Retention, Settings
from tests.service.requests.service_with_broker import run_service

if TYPE_CHECKING:
    from meshfleet.db import Database

_ANY_PORT = ListenAddress("127.0.0.1", 0)


@pytest.mark.rule("rest-224")
def test_retention_and_requests_are_changed_without_a_restart(sqlite_database: Database) -> None:
    changed = Settings(
        mqtt=_ANY_PORT, retention=Retention(event=7200, request=None), requests_at_once=1, requests_max_age=5
    )
    with run_service(sqlite_database, Settings(mqtt=_ANY_PORT), reloaded=changed) as service:
        assert service.samples.retention[SampleKind.EVENT] == 90 * 86_400_000
        response = service.admin.post("/api/v1/reload")
        assert response.json() == {
            "applied": ["requests.max-age", "requests.at-once", "retention.event", "retention.request"],
            "needsRestart": [],
        }
        assert service.samples.retention[SampleKind.EVENT] == 7_200_000
