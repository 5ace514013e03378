"""A gateway asks for firmware images over a real broker, and fetches them from a real server."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import httpx
import pytest
from msgspec.structs import replace

from meshfleet.errors import ImageBroken, ImageUnavailable
from meshfleet.gateway.online.images import Images
from meshfleet.link import Options
from meshfleet.wire.diagnostics import encode_answer
from meshfleet.wire.ids import Mac
from tests.gateway.online.asking import (
    GATEWAY,
    IMAGE,
    LONG,
    PACKAGE,
    QUESTION,
    SHORT,
    at_work,
    found,
    service,
)
from tests.gateway.online.web import Web, answer
from tests.link.proxy import address as at
from tests.link.scripted import soon
from tests.link.test_security import Certificates, secured, served
from tests.servers import TRUSTING_NOBODY, Mosquitto
from tests.tables import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from meshfleet.link import Address

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto"), "set_tcp_nodelay true") as broker:
        yield at(broker.address)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=TRUSTING_NOBODY, trust_env=False) as client:
        yield client


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with Web.of({"/image": answer(200, PACKAGE)}) as web:
        yield web


@pytest.fixture
def gateway() -> Mac:
    return Mac(f"d0cf5e{uuid4().hex[:6]}")


@pytest.mark.rule("firmware-15")
async def test_an_image_is_asked_for_and_fetched(
    mosquitto: Address, gateway: Mac, http: httpx.AsyncClient, web: Web
) -> None:
    images = Images(mosquitto, gateway, link=None, http=http, terms=LONG)
    told = found(f"{web.url}/image")
    async with service(mosquitto, lambda asked: [encode_answer(asked, told)]) as asked:
        assert await soon(images.get(QUESTION)) == IMAGE
    [question_id] = asked
    assert UUID(question_id).version == 4
    assert at_work() == []


@pytest.mark.rule("firmware-18")
async def test_answers_that_are_malformed_foreign_or_late_change_nothing(
    mosquitto: Address, gateway: Mac, http: httpx.AsyncClient, web: Web
) -> None:
    told = found(f"{web.url}/image")

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

    async with service(mosquitto, replies):
        images = Images(mosquitto, gateway, link=None, http=http, terms=LONG)
        assert await soon(images.get(QUESTION)) == IMAGE
        images.answer_came(encode_answer(str(uuid4()), None))
        assert await soon(images.get(QUESTION)) == IMAGE


@pytest.mark.rule("firmware-18")
async def test_an_image_that_is_not_there_is_unavailable(
    mosquitto: Address, gateway: Mac, http: httpx.AsyncClient
) -> None:
    async with service(mosquitto, lambda asked: [encode_answer(asked, None)]) as asked:
        with pytest.raises(ImageUnavailable, match="there is no image of model 2011"):
            await soon(Images(mosquitto, gateway, link=None, http=http, terms=LONG).get(QUESTION))
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
    mosquitto: Address, gateway: Mac, http: httpx.AsyncClient, web: Web, checks: dict[str, Any]
) -> None:
    told = found(f"{web.url}/image", **checks)
    async with service(mosquitto, lambda asked: [encode_answer(asked, told)]):
        images = Images(mosquitto, gateway, link=None, http=http, terms=LONG)
        assert await soon(images.get(QUESTION)) == IMAGE


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
    mosquitto: Address, http: httpx.AsyncClient, body: bytes, checks: dict[str, Any], words: str
) -> None:
    async with Web.of({"/image": answer(200, body)}) as web:
        told = found(f"{web.url}/image", **checks)
        async with service(mosquitto, lambda asked: [encode_answer(asked, told)]):
            terms = replace(LONG, largest=20_000)
            with pytest.raises(ImageBroken, match=words):
                await soon(Images(mosquitto, GATEWAY, link=None, http=http, terms=terms).get(QUESTION))


@each_row("uri", ["", "nonsense", "file:///etc/passwd", "ftp://127.0.0.1/a", "http://[", "gone"])
async def test_an_address_that_leads_nowhere_makes_the_image_unavailable(
    mosquitto: Address, gateway: Mac, http: httpx.AsyncClient, web: Web, uri: str
) -> None:
    told = found(f"{web.url}/gone" if uri == "gone" else uri)
    async with service(mosquitto, lambda asked: [encode_answer(asked, told)]):
        with pytest.raises(ImageUnavailable):
            await soon(Images(mosquitto, gateway, link=None, http=http, terms=LONG).get(QUESTION))


async def test_the_connection_for_questions_trusts_whom_it_is_told_to(
    tmp_path: Path, http: httpx.AsyncClient, web: Web
) -> None:
    certificates, told = Certificates(tmp_path), found(f"{web.url}/image")
    with Mosquitto(tmp_path, *served(certificates.issue("127.0.0.1"))) as broker:
        address, trust = secured(broker), certificates.trust()
        terms = replace(LONG, tls=trust)
        async with service(address, lambda asked: [encode_answer(asked, told)], Options(tls=trust)):
            images = Images(address, GATEWAY, link=None, http=http, terms=terms)
            assert await soon(images.get(QUESTION)) == IMAGE
            strict = Images(address, GATEWAY, link=None, http=http, terms=SHORT)
            with pytest.raises(ImageUnavailable, match="certificate"):
                await soon(strict.get(QUESTION))
