"""How large an upload may be."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.errors import TooSlow
from meshfleet.rest import FIRMWARE_PATH
from meshfleet.service.http.limits import HTTP_LIMITS
from meshfleet.service.http.middleware import OuterMiddleware
from meshfleet.service.metrics import Metrics
from meshfleet.settings import Settings
from tests.service.firmware.uploads import kept, under_way, upload
from tests.service.http.raw_http import build_bearer_header, build_head, exchange_raw
from tests.service.http.running_service import RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database

LARGEST = 2_000_000


@pytest.fixture(scope="module")
def service(sqlite_of_module: Database) -> Iterator[RunningService]:
    with run_service(sqlite_of_module, Settings(firmware_max_size=LARGEST)) as service:
        yield service
    sqlite_of_module.close()


@pytest.mark.rule("rest-27")
def test_an_image_may_be_as_large_as_is_set_and_no_larger(service: RunningService) -> None:
    assert upload(service, b"x" * LARGEST, "x.raucb").status_code == 201
    before = kept(service)
    for more in (1, 500_000, 5_000_000):
        answer = upload(service, b"x" * (LARGEST + more), "x.raucb")
        assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")
    assert (kept(service), under_way(service)) == (before, [])


@pytest.mark.rule("rest-27")
def test_a_body_that_says_it_is_too_large_is_not_read(service: RunningService) -> None:
    kind = "Content-Type: multipart/form-data; boundary=x"
    answer = exchange_raw(
        service,
        build_head(f"POST {FIRMWARE_PATH}", build_bearer_header(service), kind, "Content-Length: 99999999"),
    )
    assert answer is not None
    assert (answer.status, answer.json()["code"]) == (413, "body-too-large")


def test_what_is_around_an_image_has_a_limit_too(service: RunningService) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(LARGEST // 100_000 + 20):
            yield b"no boundary " * 10_000

    answer = service.admin.post(
        FIRMWARE_PATH, content=endless(), headers={"Content-Type": "multipart/form-data; boundary=x"}
    )
    assert answer.status_code == 413


def test_other_bodies_are_as_short_as_before(service: RunningService) -> None:
    answer = service.admin.post("/api/v1/labels", content=b" " * 1_100_000)
    assert answer.status_code == 413


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("path", "status"),
    [(FIRMWARE_PATH, 200), (f"{FIRMWARE_PATH}/", 200), (f"{FIRMWARE_PATH}/x", 408), ("/other", 408)],
)
async def test_an_upload_may_take_its_time_as_long_as_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, path: str, status: int
) -> None:
    """Three pieces, with twenty seconds before each."""
    loop = asyncio.get_running_loop()
    real, later = loop.time, 0
    monkeypatch.setattr(loop, "time", lambda: real() + later)

    async def receive() -> Any:
        nonlocal later
        later += 20
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"x", "more_body": later < 60}

    async def read_all(_: Any, receive: Any, send: Any) -> None:
        told = 200
        try:
            while (await receive())["more_body"]:
                pass
        except TooSlow as exc:
            told = exc.http
        await send({"type": "http.response.start", "status": told, "headers": []})

    statuses: list[int] = []

    async def send(message: Any) -> None:
        statuses.append(message["status"])

    scope: Any = {"type": "http", "scheme": "http", "method": "POST", "raw_path": path.encode(), "state": {}}
    await OuterMiddleware(read_all, Metrics(), HTTP_LIMITS)(scope, receive, send)
    assert statuses == [status]
