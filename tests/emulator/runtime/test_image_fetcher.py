"""A gateway asks for firmware images over a real broker, and fetches them from a real server."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import httpx
import pytest
from msgspec.structs import replace

from meshfleet.emulator.runtime.image_fetcher import GatewayImageFetcher
from meshfleet.errors.emulator import ImageBroken, ImageUnavailable
from meshfleet.mqtt.client import MqttOptions
from meshfleet.protocol.diagnostics import encode_answer
from meshfleet.protocol.ids import Mac
from tests.emulator.runtime.firmware_service import (
    GATEWAY,
    IMAGE,
    LONG,
    PACKAGE,
    QUESTION,
    SHORT,
    build_answer,
    diagnostics_tasks,
    run_firmware_service,
)
from tests.emulator.runtime.http_server import ScriptedHttpServer, build_response
from tests.mqtt.client.proxy import to_address as at
from tests.mqtt.client.scripted_broker import with_timeout
from tests.mqtt.client.test_security import Certificates, secured, served
from tests.row_tables import each_row
from tests.servers import NO_TRUSTED_AUTHORITIES, Mosquitto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from meshfleet.mqtt.client import BrokerAddress

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerAddress]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto"), "set_tcp_nodelay true") as broker:
        yield at(broker.address)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES, trust_env=False) as client:
        yield client


@pytest.fixture
async def web() -> AsyncIterator[ScriptedHttpServer]:
    async with ScriptedHttpServer.serving({"/image": build_response(200, PACKAGE)}) as web:
        yield web


@pytest.fixture
def gateway() -> Mac:
    return Mac(f"d0cf5e{uuid4().hex[:6]}")


@pytest.mark.rule("firmware-15")
async def test_an_image_is_asked_for_and_fetched(
    mosquitto: BrokerAddress, gateway: Mac, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    images = GatewayImageFetcher(mosquitto, gateway, link=None, http=http, fetch_options=LONG)
    told = build_answer(f"{web.url}/image")
    async with run_firmware_service(mosquitto, lambda asked: [encode_answer(asked, told)]) as asked:
        assert await with_timeout(images.fetch(QUESTION)) == IMAGE
    [question_id] = asked
    assert UUID(question_id).version == 4
    assert diagnostics_tasks() == []


@pytest.mark.rule("firmware-18")
async def test_answers_that_are_malformed_foreign_or_late_change_nothing(
    mosquitto: BrokerAddress, gateway: Mac, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    told = build_answer(f"{web.url}/image")

    def replies(asked: str) -> list[bytes]:
        good = encode_answer(asked, told)
        return [
            b"",
            b"\xff",
            b"[]",
            b"{" * 5000,
            b" " * 70_000,
            b" " * 1_100_000,
            json.dumps({"id": asked}).encode(),
            json.dumps({"id": asked, "success": True}).encode(),
            json.dumps({"id": asked, "success": "yes", "result": {}}).encode(),
            json.dumps({"id": asked, "success": True, "result": {"uri": 1}}).encode(),
            json.dumps({"id": 1, "success": False}).encode(),
            encode_answer(str(uuid4()), None),
            good,
            good,
            encode_answer(asked, None),
        ]

    async with run_firmware_service(mosquitto, replies):
        images = GatewayImageFetcher(mosquitto, gateway, link=None, http=http, fetch_options=LONG)
        assert await with_timeout(images.fetch(QUESTION)) == IMAGE
        images.on_answer(encode_answer(str(uuid4()), None))
        assert await with_timeout(images.fetch(QUESTION)) == IMAGE


@pytest.mark.rule("firmware-18")
async def test_an_image_that_is_not_there_is_unavailable(
    mosquitto: BrokerAddress, gateway: Mac, http: httpx.AsyncClient
) -> None:
    async with run_firmware_service(mosquitto, lambda asked: [encode_answer(asked, None)]) as asked:
        with pytest.raises(ImageUnavailable, match="there is no image of model 2011"):
            await with_timeout(
                GatewayImageFetcher(mosquitto, gateway, link=None, http=http, fetch_options=LONG).fetch(
                    QUESTION
                )
            )
    assert len(asked) == 1


@each_row(
    "checks",
    [
        {"size": len(PACKAGE)},
        {"sha256": hashlib.sha256(PACKAGE).hexdigest()},
        {"sha256": hashlib.sha256(PACKAGE).hexdigest().upper(), "size": len(PACKAGE)},
    ],
)
async def test_an_image_as_promised_is_taken(
    mosquitto: BrokerAddress,
    gateway: Mac,
    http: httpx.AsyncClient,
    web: ScriptedHttpServer,
    checks: dict[str, Any],
) -> None:
    told = build_answer(f"{web.url}/image", **checks)
    async with run_firmware_service(mosquitto, lambda asked: [encode_answer(asked, told)]):
        images = GatewayImageFetcher(mosquitto, gateway, link=None, http=http, fetch_options=LONG)
        assert await with_timeout(images.fetch(QUESTION)) == IMAGE


@each_row(
    ("body", "checks", "words"),
    [
        (PACKAGE, {"size": len(PACKAGE) + 1}, "bytes"),
        (PACKAGE, {"size": 0}, "bytes"),
        (PACKAGE, {"sha256": hashlib.sha256(b"").hexdigest()}, "SHA-256"),
        (PACKAGE[:-1], {"sha256": hashlib.sha256(PACKAGE).hexdigest(), "size": len(PACKAGE) - 1}, "SHA-256"),
        (PACKAGE[:-30], {}, "cannot be read"),
        (b"", {}, "cannot be read"),
        (bytes(20_001), {}, "more than 20000 bytes"),
    ],
)
async def test_an_image_that_is_not_as_promised_is_broken(
    mosquitto: BrokerAddress, http: httpx.AsyncClient, body: bytes, checks: dict[str, Any], words: str
) -> None:
    async with ScriptedHttpServer.serving({"/image": build_response(200, body)}) as web:
        told = build_answer(f"{web.url}/image", **checks)
        async with run_firmware_service(mosquitto, lambda asked: [encode_answer(asked, told)]):
            terms = replace(LONG, max_bytes=20_000)
            with pytest.raises(ImageBroken, match=words):
                await with_timeout(
                    GatewayImageFetcher(mosquitto, GATEWAY, link=None, http=http, fetch_options=terms).fetch(
                        QUESTION
                    )
                )


@each_row("uri", ["", "nonsense", "file:///etc/passwd", "ftp://127.0.0.1/a", "http://[", "gone"])
async def test_an_address_that_leads_nowhere_makes_the_image_unavailable(
    mosquitto: BrokerAddress, gateway: Mac, http: httpx.AsyncClient, web: ScriptedHttpServer, uri: str
) -> None:
    told = build_answer(f"{web.url}/gone" if uri == "gone" else uri)
    async with run_firmware_service(mosquitto, lambda asked: [encode_answer(asked, told)]):
        with pytest.raises(ImageUnavailable):
            await with_timeout(
                GatewayImageFetcher(mosquitto, gateway, link=None, http=http, fetch_options=LONG).fetch(
                    QUESTION
                )
            )


async def test_the_connection_for_questions_trusts_whom_it_is_told_to(
    tmp_path: Path, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    certificates, told = Certificates(tmp_path), build_answer(f"{web.url}/image")
    with Mosquitto(tmp_path, *served(certificates.issue("127.0.0.1"))) as broker:
        address, trust = secured(broker), certificates.trust()
        terms = replace(LONG, tls=trust)
        async with run_firmware_service(
            address, lambda asked: [encode_answer(asked, told)], MqttOptions(tls=trust)
        ):
            images = GatewayImageFetcher(address, GATEWAY, link=None, http=http, fetch_options=terms)
            assert await with_timeout(images.fetch(QUESTION)) == IMAGE
            strict = GatewayImageFetcher(address, GATEWAY, link=None, http=http, fetch_options=SHORT)
            with pytest.raises(ImageUnavailable, match="certificate"):
                await with_timeout(strict.fetch(QUESTION))
