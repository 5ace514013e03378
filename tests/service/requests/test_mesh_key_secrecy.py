"""Keys of a mesh reach the gateway and nobody else: no file, no log, no answer, no figure has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.service.requests.scripted_gateway import never_respond
from tests.service.requests.service_with_broker import SHORT_TIMEOUT_MS
from tests.service.requests.service_with_broker import run_service as running_office

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.db import Database
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage
    from tests.service.requests.service_with_broker import ServiceWithBroker

KEY, PUBLIC = "5ec2e7c0de" * 4, "9ab11c7e57" * 12
SECRETS = {"key": KEY, "publicKey": PUBLIC, "accessType": "unprovisioned"}


def spellings() -> list[bytes]:
    """As somebody might have written them down: text in either case, bytes, and a part of each."""
    return [
        form
        for secret in (KEY, PUBLIC)
        for part in (secret, secret[:20])
        for form in (part.encode(), part.upper().encode(), bytes.fromhex(part))
    ]


def send_all_requests(office: ServiceWithBroker) -> list[str]:
    """Send requests with keys that go well and wrong in all ways; gives all that was told about them."""

    def rude(asked: IncomingRequest) -> list[OutgoingMessage]:
        return [asked.build_response(status="broken")]

    def gossip(asked: IncomingRequest) -> list[OutgoingMessage]:
        return [
            asked.build_response(
                status=9, errorMessage=f"not with {KEY.upper()} or {asked.body['publicKey']}"
            )
        ]

    told: list[str] = []
    with office.gateway(lambda asked: [asked.build_response(value="ff")]) as third:
        device = office.device_behind(third)
        office.wait_for_version(third)

        def send(operation: str = "write", **body: Any) -> None:
            answer = office.send(device, operation, "8010", **{**SECRETS, **body})
            told.append(f"{answer.text} {answer.headers}")

        send()
        send("read")
        send("read", headers={"Prefer": "respond-async"})
        for headers in ({"Idempotency-Key": "k"}, {"Idempotency-Key": "k"}):
            send(headers=headers)
        send(headers={"Idempotency-Key": "k"}, value="ff")
        assert "idempotency-key-reused" in told[-1]
        reached = len(third.requests)
        assert all((each.body["key"], each.body["publicKey"]) == (KEY, PUBLIC) for each in third.requests)
        # What is wrong with a request must not be told by repeating it.
        send(key=f"{KEY}x")
        send(key=f"{KEY}a")
        send(publicKey=[PUBLIC])
        send("read", value=KEY, key=None)
        send("apiversion")
        send(priority=9)
        send(colour=KEY)
        send(headers={"Idempotency-Key": f"{KEY} {KEY}"})
        assert len(third.requests) == reached
        third.responder = gossip
        for operation in ("read", "write"):
            send(operation)
            assert '"errorMessage":"not with ' in told[-1]
        third.responder = rude
        send()
        assert "malformed-response" in told[-1]
        third.responder = never_respond
        send(timeoutMs=SHORT_TIMEOUT_MS)
        assert "gateway-timeout" in told[-1]
        told.extend(
            office.admin.get(path).text
            for path in (
                f"/api/v1/devices/bmac-{device}/requests?MaxResults=1000",
                f"/api/v1/devices/bmac-{device}",
                "/api/v1/audit?MaxResults=1000",
                "/metrics",
            )
        )
    return told


@pytest.mark.rule("request-31", "request-32")
def test_keys_are_in_no_file_log_answer_or_figure(
    sqlite_database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="meshfleet")
    with running_office(sqlite_database) as office:
        told = send_all_requests(office)
        assert len(office.viewer.get("/metrics").text) > 1000
    sqlite_database.close()
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"idempotency" in each or b"request.write" in each for each in files)
    haystack = b"\n".join([*files, caplog.text.encode(), *(each.encode() for each in told)])
    assert [each for each in spellings() if each in haystack] == []


@pytest.mark.rule("request-31", "request-32")
def test_keys_are_in_no_table_of_a_server(
    postgresql_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="meshfleet")
    with running_office(postgresql_database) as office:
        told = send_all_requests(office)
    url = postgresql_database.read_now(lambda connection: connection.engine.url)
    with psycopg.connect(host=url.host, port=url.port, user=url.username, dbname=url.database) as server:
        names = server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        rows = [
            f"{server.execute(f'SELECT * FROM {name}'.encode()).fetchall()}"  # noqa: S608 # our own names
            for (name,) in names
        ]
    postgresql_database.close()
    assert any("request.write" in each for each in rows)
    haystack = "\n".join([*rows, caplog.text, *told]).encode()
    assert [each for each in spellings() if each in haystack] == []
