"""Mesh keys reach only the gateway: no file, log line, response or metric contains them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.service.requests.scripted_gateway import never_respond
from tests.service.requests.service_with_broker import SHORT_TIMEOUT_MS, run_service

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.db import Database
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage
    from tests.service.requests.service_with_broker import ServiceWithBroker

KEY, PUBLIC = "5ec2e7c0de" * 4, "9ab11c7e57" * 12
SECRETS = {"key": KEY, "publicKey": PUBLIC, "accessType": "unprovisioned"}


def key_forms() -> list[bytes]:
    """Return the forms in which a key could be stored: text in either case, bytes, and a part of each."""
    return [
        form
        for secret in (KEY, PUBLIC)
        for part in (secret, secret[:20])
        for form in (part.encode(), part.upper().encode(), bytes.fromhex(part))
    ]


def send_all_requests(service: ServiceWithBroker) -> list[str]:
    """Send requests with keys that succeed and fail in all ways, and return all responses."""

    def respond_malformed(request: IncomingRequest) -> list[OutgoingMessage]:
        return [request.build_response(status="broken")]

    def respond_with_keys(request: IncomingRequest) -> list[OutgoingMessage]:
        return [
            request.build_response(
                status=9, errorMessage=f"not with {KEY.upper()} or {request.body['publicKey']}"
            )
        ]

    responses: list[str] = []
    with service.gateway(lambda request: [request.build_response(value="ff")]) as gateway:
        device = service.device_behind(gateway)
        service.wait_for_version(gateway)

        def send(operation: str = "write", **body: Any) -> None:
            response = service.send(device, operation, "8010", **{**SECRETS, **body})
            responses.append(f"{response.text} {response.headers}")

        send()
        send("read")
        send("read", headers={"Prefer": "respond-async"})
        for headers in ({"Idempotency-Key": "k"}, {"Idempotency-Key": "k"}):
            send(headers=headers)
        send(headers={"Idempotency-Key": "k"}, value="ff")
        assert "idempotency-key-reused" in responses[-1]
        received_count = len(gateway.requests)
        assert all((each.body["key"], each.body["publicKey"]) == (KEY, PUBLIC) for each in gateway.requests)
        # An error must not quote the key of a rejected request.
        send(key=f"{KEY}x")
        send(key=f"{KEY}a")
        send(publicKey=[PUBLIC])
        send("read", value=KEY, key=None)
        send("apiversion")
        send(priority=9)
        send(colour=KEY)
        send(headers={"Idempotency-Key": f"{KEY} {KEY}"})
        assert len(gateway.requests) == received_count
        gateway.responder = respond_with_keys
        for operation in ("read", "write"):
            send(operation)
            assert '"errorMessage":"not with ' in responses[-1]
        gateway.responder = respond_malformed
        send()
        assert "malformed-response" in responses[-1]
        gateway.responder = never_respond
        send(timeoutMs=SHORT_TIMEOUT_MS)
        assert "gateway-timeout" in responses[-1]
        responses.extend(
            service.admin.get(path).text
            for path in (
                f"/api/v1/devices/bmac-{device}/requests?MaxResults=1000",
                f"/api/v1/devices/bmac-{device}",
                "/api/v1/audit?MaxResults=1000",
                "/metrics",
            )
        )
    return responses


@pytest.mark.rule("request-31", "request-32")
def test_keys_are_in_no_file_log_response_or_metric(
    sqlite_database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="meshfleet")
    with run_service(sqlite_database) as service:
        responses = send_all_requests(service)
        assert len(service.viewer.get("/metrics").text) > 1000
    sqlite_database.close()
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"idempotency" in each or b"request.write" in each for each in files)
    haystack = b"\n".join([*files, caplog.text.encode(), *(each.encode() for each in responses)])
    assert [each for each in key_forms() if each in haystack] == []


@pytest.mark.rule("request-31", "request-32")
def test_keys_are_in_no_postgresql_table(
    postgresql_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="meshfleet")
    with run_service(postgresql_database) as service:
        responses = send_all_requests(service)
    url = postgresql_database.read_now(lambda connection: connection.engine.url)
    with psycopg.connect(host=url.host, port=url.port, user=url.username, dbname=url.database) as server:
        names = server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        rows = [
            f"{server.execute(f'SELECT * FROM {name}'.encode()).fetchall()}"  # noqa: S608 # table names of the test database
            for (name,) in names
        ]
    postgresql_database.close()
    assert any("request.write" in each for each in rows)
    haystack = "\n".join([*rows, caplog.text, *responses]).encode()
    assert [each for each in key_forms() if each in haystack] == []
