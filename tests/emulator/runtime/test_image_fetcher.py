"""Firmware images are requested over a real broker and downloaded from a real server."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from meshfleet.emulator.runtime.image_fetcher import GatewayImageFetcher
from meshfleet.errors.emulator import ImageBroken, ImageUnavailable
from meshfleet.mqtt.client import MqttOptions
from meshfleet.protocol.diagnostics import encode_image_response
from meshfleet.protocol.firmware_image import MAX_PACKAGE_BYTES
from meshfleet.protocol.ids import Mac
from tests.emulator.runtime.firmware_service import (
    GATEWAY,
    IMAGE,
    IMAGE_REQUEST,
    LONG_TIMEOUT,
    PACKAGE,
    SHORT_TIMEOUT,
    build_image_location,
    diagnostics_tasks,
    run_firmware_service,
)
from tests.emulator.runtime.http_server import ScriptedHttpServer, build_response
from tests.mqtt.client.scripted_broker import with_timeout
from tests.mqtt.client.test_security import Certificates, secured, served
from tests.row_tables import each_row
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from meshfleet.mqtt.client import BrokerAddress

pytestmark = pytest.mark.anyio


@pytest.fixture
def fetcher(mosquitto: BrokerAddress, http: httpx.AsyncClient) -> GatewayImageFetcher:
    """Return a fetcher of a gateway that no other test uses."""
    mac = Mac(f"d0cf5e{uuid4().hex[:6]}")
    return GatewayImageFetcher(mosquitto, mac, main_client=None, http=http, fetch_options=LONG_TIMEOUT)


@pytest.mark.rule("firmware-15")
async def test_an_image_is_requested_and_downloaded(
    mosquitto: BrokerAddress, fetcher: GatewayImageFetcher, web: ScriptedHttpServer
) -> None:
    answer = build_image_location(f"{web.url}/image")
    async with run_firmware_service(
        mosquitto, lambda request_id: [encode_image_response(request_id, answer)]
    ) as request_ids:
        assert await with_timeout(fetcher.fetch(IMAGE_REQUEST)) == IMAGE
    [request_id] = request_ids
    assert UUID(request_id).version == 4
    assert diagnostics_tasks() == []


@pytest.mark.rule("firmware-18")
async def test_malformed_unknown_and_late_answers_are_ignored(
    mosquitto: BrokerAddress, fetcher: GatewayImageFetcher, web: ScriptedHttpServer
) -> None:
    answer = build_image_location(f"{web.url}/image")

    def replies(request_id: str) -> list[bytes]:
        valid_answer = encode_image_response(request_id, answer)
        return [
            b"",
            b"\xff",
            b"[]",
            b"{" * 5000,
            b" " * 70_000,
            b" " * 1_100_000,
            json.dumps({"id": request_id}).encode(),
            json.dumps({"id": request_id, "success": True}).encode(),
            json.dumps({"id": request_id, "success": "yes", "result": {}}).encode(),
            json.dumps({"id": request_id, "success": True, "result": {"uri": 1}}).encode(),
            json.dumps({"id": 1, "success": False}).encode(),
            encode_image_response(str(uuid4()), None),
            valid_answer,
            valid_answer,
            encode_image_response(request_id, None),
        ]

    async with run_firmware_service(mosquitto, replies):
        assert await with_timeout(fetcher.fetch(IMAGE_REQUEST)) == IMAGE
        fetcher.on_image_response(encode_image_response(str(uuid4()), None))
        assert await with_timeout(fetcher.fetch(IMAGE_REQUEST)) == IMAGE


@pytest.mark.rule("firmware-18")
async def test_an_image_that_the_service_does_not_have_is_unavailable(
    mosquitto: BrokerAddress, fetcher: GatewayImageFetcher
) -> None:
    async with run_firmware_service(
        mosquitto, lambda request_id: [encode_image_response(request_id, None)]
    ) as request_ids:
        with pytest.raises(ImageUnavailable, match="the service has no image of model 2011"):
            await with_timeout(fetcher.fetch(IMAGE_REQUEST))
    assert len(request_ids) == 1


@each_row(
    "checks",
    [
        {"size": len(PACKAGE)},
        {"sha256": hashlib.sha256(PACKAGE).hexdigest()},
        {"sha256": hashlib.sha256(PACKAGE).hexdigest().upper(), "size": len(PACKAGE)},
    ],
)
async def test_an_image_with_the_announced_size_and_hash_is_accepted(
    mosquitto: BrokerAddress,
    fetcher: GatewayImageFetcher,
    web: ScriptedHttpServer,
    checks: dict[str, Any],
) -> None:
    answer = build_image_location(f"{web.url}/image", **checks)
    async with run_firmware_service(
        mosquitto, lambda request_id: [encode_image_response(request_id, answer)]
    ):
        assert await with_timeout(fetcher.fetch(IMAGE_REQUEST)) == IMAGE


async def test_a_bundle_may_be_larger_than_any_package(
    mosquitto: BrokerAddress, fetcher: GatewayImageFetcher
) -> None:
    bundle = bytes(MAX_PACKAGE_BYTES + 1)
    async with ScriptedHttpServer.serving({"/image": build_response(200, bundle)}) as web:
        answer = build_image_location(f"{web.url}/image")
        async with run_firmware_service(
            mosquitto, lambda request_id: [encode_image_response(request_id, answer)]
        ):
            assert (await with_timeout(fetcher.fetch(IMAGE_REQUEST))).size == len(bundle)


@each_row(
    ("body", "checks", "message"),
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
async def test_an_image_that_differs_from_the_announced_one_is_broken(
    mosquitto: BrokerAddress, http: httpx.AsyncClient, body: bytes, checks: dict[str, Any], message: str
) -> None:
    async with ScriptedHttpServer.serving({"/image": build_response(200, body)}) as web:
        answer = build_image_location(f"{web.url}/image", **checks)
        async with run_firmware_service(
            mosquitto, lambda request_id: [encode_image_response(request_id, answer)]
        ):
            options = replace(LONG_TIMEOUT, max_bytes=20_000)
            with pytest.raises(ImageBroken, match=message):
                await with_timeout(
                    GatewayImageFetcher(
                        mosquitto, GATEWAY, main_client=None, http=http, fetch_options=options
                    ).fetch(IMAGE_REQUEST)
                )


@each_row("uri", ["", "nonsense", "file:///etc/passwd", "ftp://127.0.0.1/a", "http://[", "gone"])
async def test_an_image_with_an_unusable_url_is_unavailable(
    mosquitto: BrokerAddress, fetcher: GatewayImageFetcher, web: ScriptedHttpServer, uri: str
) -> None:
    answer = build_image_location(f"{web.url}/gone" if uri == "gone" else uri)
    async with run_firmware_service(
        mosquitto, lambda request_id: [encode_image_response(request_id, answer)]
    ):
        with pytest.raises(ImageUnavailable):
            await with_timeout(fetcher.fetch(IMAGE_REQUEST))


async def test_the_diagnostics_connection_uses_the_given_tls_settings(
    tmp_path: Path, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    certificates, answer = Certificates(tmp_path), build_image_location(f"{web.url}/image")
    with Mosquitto(tmp_path, *served(certificates.issue("127.0.0.1"))) as broker:
        address, trust = secured(broker), certificates.trust()
        options = replace(LONG_TIMEOUT, tls=trust)
        async with run_firmware_service(
            address, lambda request_id: [encode_image_response(request_id, answer)], MqttOptions(tls=trust)
        ):
            fetcher = GatewayImageFetcher(
                address, GATEWAY, main_client=None, http=http, fetch_options=options
            )
            assert await with_timeout(fetcher.fetch(IMAGE_REQUEST)) == IMAGE
            reason = ""
            for idle_timeout in (0.3, 1.0, 3.0):  # on a busy machine a handshake takes long
                untrusting = GatewayImageFetcher(
                    address,
                    GATEWAY,
                    main_client=None,
                    http=http,
                    fetch_options=replace(SHORT_TIMEOUT, idle_timeout=idle_timeout),
                )
                with pytest.raises(ImageUnavailable) as failure:
                    await with_timeout(untrusting.fetch(IMAGE_REQUEST))
                if "did not respond within" not in (reason := str(failure.value)):
                    break
            assert "certificate" in reason
