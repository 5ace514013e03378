"""End of subscriptions with the token, the login session, the account, or the service."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import httpx
import pytest

from meshfleet.rest.accounts import Role
from meshfleet.service.accounts import api_key_store
from meshfleet.service.accounts.bearer import Authentication, BearerAuthenticator, TokenSigner
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.live.hub import EventHub
from meshfleet.service.live.reauthorization import Reauthorizer
from meshfleet.service.live.subscriber import LiveSubscriber
from tests.mqtt.broker.running_broker import Clock
from tests.service.http.running_service import PASSWORD
from tests.service.ingest.messages import temperature
from tests.service.live.live_service import LiveService, run_live_service

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database

HALF_AN_HOUR = 1800.0


def _log_out(service: LiveService, token: str, _user: str) -> None:
    with service.client(token) as client:
        assert client.post("/api/v1/auth/logout").status_code < 300


def _delete_user(service: LiveService, _token: str, user: str) -> None:
    assert service.admin.delete(f"/api/v1/users/{user}").status_code < 300


def _expire_token(service: LiveService, _token: str, _user: str) -> None:
    service.clock.move(seconds=HALF_AN_HOUR)


END_ACTIONS = pytest.mark.parametrize("end_access", [_log_out, _delete_user, _expire_token])


@pytest.mark.rule("rest-154", "rest-155")
@END_ACTIONS
def test_a_stream_ends_with_its_token(
    service_on_each_database: LiveService, end_access: Callable[[LiveService, str, str], None]
) -> None:
    user = service_on_each_database.new_user()
    token = service_on_each_database.log_in(user)
    with service_on_each_database.client(token) as client, service_on_each_database.stream(client) as stream:
        end_access(service_on_each_database, token, user)
        assert any(line.startswith((": the access token", ": the session")) for line in stream.rest())


@pytest.mark.rule("rest-154", "rest-155")
@END_ACTIONS
def test_a_websocket_ends_with_its_token(
    service: LiveService, end_access: Callable[[LiveService, str, str], None]
) -> None:
    user = service.new_user()
    token = service.log_in(user)
    with service.open_authenticated(token) as websocket:
        websocket.subscribe()
        end_access(service, token, user)
        code, last_frame = websocket.read_close()
    assert (code, last_frame["error"]["code"]) == (4401, "not-logged-in")


@pytest.mark.rule("rest-155")
def test_a_logout_in_another_process_is_detected(sqlite_database: Database) -> None:
    with run_live_service(sqlite_database) as service, run_live_service(sqlite_database) as other:
        token = service.log_in(service.new_user())
        with service.client(token) as client, service.stream(client) as stream:
            _log_out(other, token, "")
            assert any(line.startswith(": the session") for line in stream.rest())


@pytest.mark.rule("rest-154")
def test_a_new_token_keeps_a_websocket_open(service: LiveService) -> None:
    user = service.new_user()
    token = service.log_in(user)
    with service.open_authenticated(token) as websocket:
        websocket.subscribe(Types=["report"])
        service.clock.move(seconds=HALF_AN_HOUR - 60)
        with service.client(token) as client:
            websocket.send(token=client.post("/api/v1/auth/refresh").json()["authToken"])
        websocket.subscribe(Types=["report"], Ids=[])  # the token was received when this is answered
        service.clock.move(seconds=120)
        # The access is rechecked meanwhile.
        with service.open_authenticated(service.log_in(user)) as second_websocket:
            second_websocket.subscribe()
        service.ingest(temperature(service.clock(), 1))
        assert websocket.next()["data"]["value"] == 1


def test_a_websocket_rejects_the_token_of_another_account(service: LiveService) -> None:
    with service.open_authenticated(service.log_in(service.new_user())) as websocket:
        websocket.send(token=service.log_in(service.new_user()))
        assert websocket.read_close()[0] == 4403


@pytest.mark.rule("rest-154")
def test_a_revoked_api_key_ends_streams_and_websockets(service: LiveService) -> None:
    api_key = service.admin.post("/api/v1/api-keys", json={"name": "short", "role": "viewer"}).json()
    with (
        service.client(api_key["key"]) as client,
        service.stream(client) as stream,
        service.open_authenticated(api_key["key"]) as websocket,
    ):
        websocket.subscribe()
        service.admin.delete(f"/api/v1/api-keys/{api_key['id']}")
        assert any("API key is invalid" in line for line in stream.rest())
        assert websocket.read_close()[0] == 4401


def test_a_changed_role_ends_no_subscription(service: LiveService) -> None:
    user = service.new_user(Role.OPERATOR)
    token = service.log_in(user)
    with service.client(token) as client, service.stream(client, Types="device") as stream:
        assert service.admin.put(f"/api/v1/users/{user}", json={"role": "viewer"}).status_code == 200
        device = service.new_device()
        service.operator.put(f"/api/v1/devices/{device}/friendly-name", json={"name": "Kuno"})
        assert stream.next()["data"]["friendlyName"] == "Kuno"


def test_a_changed_password_ends_the_subscriptions_of_its_sessions(service: LiveService) -> None:
    user = service.new_user()
    token = service.log_in(user)
    with service.open_authenticated(token) as websocket:
        websocket.subscribe()
        service.admin.put(f"/api/v1/users/{user}", json={"password": PASSWORD + "2"})
        assert websocket.read_close()[0] == 4401


def test_stopping_closes_all_subscribers_even_if_one_does_not_read(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with run_live_service(sqlite_database) as service:
        connection = service.open_tcp()
        connection.sendall(
            f"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.key}\r\n\r\n".encode()
        )
        assert connection.recv(12) == b"HTTP/1.1 200"
        stream_context = service.stream(
            httpx.Client(base_url=service.url, headers=service.viewer.headers, timeout=30)
        )
        stream = stream_context.__enter__()
        text = "x" * 60_000
        for first in range(0, 200, 10):
            now = service.clock() + first
            service.ingest(*(temperature(now + each, text) for each in range(10)))
            for _ in range(10):
                stream.next()
        websocket_context = service.open_authenticated()
        websocket = websocket_context.__enter__()
        websocket.subscribe()
    assert ": the service is stopping, reconnect later" in stream.rest()
    assert websocket.read_close()[0] == 1012
    connection.close()
    stream_context.__exit__(None, None, None)
    websocket_context.__exit__(None, None, None)
    sqlite_database.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.anyio
async def test_an_api_key_without_expiry_is_not_checked_every_second(sqlite_database: Database) -> None:
    clock = Clock()
    authenticator = _CountingAuthenticator(sqlite_database, TokenSigner(b"x" * 32), clock)
    key = sqlite_database.write_now(
        api_key_store.insert_api_key, "k", role=Role.VIEWER, expires_at=None, by=COMMAND_LINE, now=clock()
    ).key
    hub = EventHub(clock)
    reauthorizer = Reauthorizer(hub, authenticator, clock)
    subscriber = LiveSubscriber(lambda event: event.body, COMMAND_LINE, key)
    hub.add(subscriber)
    await reauthorizer.check_subscriber(subscriber)
    for _ in range(8):
        clock.move(seconds=1)
        await reauthorizer.recheck_bearers(all_bearers=False)
    assert authenticator.check_count == 1
    clock.move(seconds=3)
    await reauthorizer.recheck_bearers(all_bearers=False)
    assert authenticator.check_count == 2


class _CountingAuthenticator(BearerAuthenticator):
    """Authenticator that counts its checks."""

    check_count = 0

    async def authenticate(self, bearer: str) -> Authentication:
        self.check_count += 1
        return await super().authenticate(bearer)
