"""Tests of the size and time limits of uploads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.errors import RequestTimeout
from meshfleet.rest.firmware import FIRMWARE_PATH
from meshfleet.service.http.limits import HTTP_LIMITS
from meshfleet.service.http.middleware import MetricsAndLimitsMiddleware
from meshfleet.service.metrics import Metrics
from meshfleet.settings import Settings
from tests.service.firmware.uploads import list_partial_images, list_stored_images, upload
from tests.service.http.raw_http import build_bearer_header, build_head, exchange_raw
from tests.service.http.running_service import RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database

MAX_IMAGE_BYTES = 2_000_000


@pytest.fixture(scope="module")
def service(sqlite_of_module: Database) -> Iterator[RunningService]:
    with run_service(sqlite_of_module, Settings(firmware_max_size=MAX_IMAGE_BYTES)) as service:
        yield service


@pytest.mark.rule("rest-27")
def test_an_image_may_not_exceed_the_configured_size(service: RunningService) -> None:
    assert upload(service, b"x" * MAX_IMAGE_BYTES, "x.raucb").status_code == 201
    before = list_stored_images(service)
    for excess in (1, 500_000, 5_000_000):
        response = upload(service, b"x" * (MAX_IMAGE_BYTES + excess), "x.raucb")
        assert (response.status_code, response.json()["code"]) == (413, "body-too-large")
    assert (list_stored_images(service), list_partial_images(service)) == (before, [])


@pytest.mark.rule("rest-27")
def test_a_body_with_a_too_large_content_length_is_rejected_unread(service: RunningService) -> None:
    content_type = "Content-Type: multipart/form-data; boundary=x"
    response = exchange_raw(
        service,
        build_head(
            f"POST {FIRMWARE_PATH}", build_bearer_header(service), content_type, "Content-Length: 99999999"
        ),
    )
    assert response is not None
    assert (response.status, response.json()["code"]) == (413, "body-too-large")


def test_the_form_around_an_image_is_limited_too(service: RunningService) -> None:
    def generate_body() -> Iterator[bytes]:
        for _ in range(MAX_IMAGE_BYTES // 100_000 + 20):
            yield b"no boundary " * 10_000

    response = service.admin.post(
        FIRMWARE_PATH, content=generate_body(), headers={"Content-Type": "multipart/form-data; boundary=x"}
    )
    assert response.status_code == 413


def test_the_limit_of_other_bodies_is_unchanged(service: RunningService) -> None:
    response = service.admin.post("/api/v1/labels", content=b" " * 1_100_000)
    assert response.status_code == 413


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "status"),
    [(FIRMWARE_PATH, 200), (f"{FIRMWARE_PATH}/", 200), (f"{FIRMWARE_PATH}/x", 408), ("/other", 408)],
)
async def test_only_an_upload_may_take_longer_than_other_requests_while_it_progresses(
    monkeypatch: pytest.MonkeyPatch, path: str, status: int
) -> None:
    """Send three pieces with 20 seconds before each."""
    loop = asyncio.get_running_loop()
    real_time, elapsed = loop.time, 0
    monkeypatch.setattr(loop, "time", lambda: real_time() + elapsed)

    async def receive() -> Any:
        nonlocal elapsed
        elapsed += 20
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"x", "more_body": elapsed < 60}

    async def read_all(_: Any, receive: Any, send: Any) -> None:
        status_code = 200
        try:
            while (await receive())["more_body"]:
                pass
        except RequestTimeout as exc:
            status_code = exc.http
        await send({"type": "http.response.start", "status": status_code, "headers": []})

    statuses: list[int] = []

    async def send(message: Any) -> None:
        statuses.append(message["status"])

    scope: Any = {"type": "http", "scheme": "http", "method": "POST", "raw_path": path.encode(), "state": {}}
    await MetricsAndLimitsMiddleware(read_all, Metrics(), HTTP_LIMITS)(scope, receive, send)
    assert statuses == [status]
