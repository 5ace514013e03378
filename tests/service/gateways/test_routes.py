"""Fields of gateways over REST that only the running service knows."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from meshfleet.db.samples import open_sample_store
from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.rest.accounts import Role
from meshfleet.service.accounts import api_key_store
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.api import RestApi
from meshfleet.service.gateways import store
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from meshfleet.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

G, H = Mac("02005e000001"), Mac("02005e000002")


@pytest.mark.rule("rest-75")
async def test_version_mode_and_rate_are_the_same_in_the_list_and_alone(
    database: Database, tmp_path: Path
) -> None:
    now = time.time_ns() // 1_000_000
    key = database.write_now(
        api_key_store.insert_api_key, "viewer", role=Role.VIEWER, expires_at=None, by=COMMAND_LINE, now=now
    ).key
    for mac in (G, H):
        database.write_now(store.claim_gateway, mac, name=None, by=COMMAND_LINE, now=now)
    database.write_now(store.update_api_versions, {mac_to_int(G): "2.4.0"})
    with (
        closing(open_sample_store(database, tmp_path, {}, now=now)) as samples,
        closing(RestApi(database, Settings(), samples, now=lambda: now)) as api,
    ):
        batch = ParsedBatch(now)
        batch.report_kinds += ["measurement-decoded"] * 90
        batch.report_gateways += [mac_to_int(G)] * 90
        api.traffic.on_commit(batch)
        database.write_now(api.traffic.prepare_flush({}, now).write, ())
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=_ApiApp(api)),
            base_url="http://service",
            headers={"Authorization": f"Bearer {key}"},
        ) as client:
            listed = (await client.get("/api/v1/gateways")).json()["items"]
            single = [(await client.get(f"/api/v1/gateways/{mac}")).json() for mac in (G, H)]
    assert listed == single
    assert [_learned_fields(each) for each in listed] == [("2.4.0", "decoded", 90.0), (None, None, 0.0)]


class _ApiApp:
    """ASGI application with a state per request, as the server provides it."""

    def __init__(self, api: RestApi) -> None:
        self._app: Any = api.app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app({**scope, "state": {}}, receive, send)


def _learned_fields(gateway: dict[str, Any]) -> tuple[str | None, str | None, float]:
    return gateway["apiVersion"], gateway["mode"], gateway["reportsPerMinute"]
