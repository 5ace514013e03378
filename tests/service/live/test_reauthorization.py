"""How listening ends: with the token, with the login, with the account, with the service."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import httpx
import pytest

from meshfleet.rest import Role
from meshfleet.service.accounts import api_key_store
from meshfleet.service.accounts.bearer import Authentication, BearerAuthenticator, TokenSigner
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.live.hub import EventHub
from meshfleet.service.live.reauthorization import Reauthorizer
from meshfleet.service.live.subscriber import LiveSubscriber
from tests.mqtt.broker.running_broker import Clock
from tests.service.http.running_service import PASSWORD
from tests.service.ingest.messages import temperature
from tests.service.live.live_service import run_live_service

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database
    from tests.service.live.live_service import LiveService

HALF_AN_HOUR = 1800.0


def _log_out(stage: LiveService, token: str, _user: str) -> None:
    with stage.client(token) as client:
        assert client.post("/api/v1/auth/logout").status_code < 300


def _remove(stage: LiveService, _token: str, user: str) -> None:
    assert stage.admin.delete(f"/api/v1/users/{user}").status_code < 300


def _let_time_pass(stage: LiveService, _token: str, _user: str) -> None:
    stage.clock.move(seconds=HALF_AN_HOUR)


DEEDS = pytest.mark.parametrize("deed", [_log_out, _remove, _let_time_pass])


@pytest.mark.rule("rest-154", "rest-155")
@DEEDS
def test_a_stream_ends_with_its_token(
    on_both: LiveService, deed: Callable[[LiveService, str, str], None]
) -> None:
    user = on_both.new_user()
    token = on_both.log_in(user)
    with on_both.client(token) as client, on_both.stream(client) as stream:
        deed(on_both, token, user)
        assert any(line.startswith((": the access token", ": the session")) for line in stream.rest())


@pytest.mark.rule("rest-154", "rest-155")
@DEEDS
def test_a_conversation_ends_with_its_token(
    stage: LiveService, deed: Callable[[LiveService, str, str], None]
) -> None:
    user = stage.new_user()
    token = stage.log_in(user)
    with stage.open_authenticated(token) as talk:
        talk.subscribe()
        deed(stage, token, user)
        code, last = talk.read_close()
    assert (code, last["error"]["code"]) == (4401, "not-logged-in")


@pytest.mark.rule("rest-155")
def test_a_logout_is_noticed_that_another_process_made(sqlite_database: Database) -> None:
    with run_live_service(sqlite_database) as stage, run_live_service(sqlite_database) as other:
        token = stage.log_in(stage.new_user())
        with stage.client(token) as client, stage.stream(client) as stream:
            _log_out(other, token, "")
            assert any(line.startswith(": the session") for line in stream.rest())
    sqlite_database.close()


@pytest.mark.rule("rest-154")
def test_a_new_token_keeps_a_conversation_going(stage: LiveService) -> None:
    user = stage.new_user()
    token = stage.log_in(user)
    with stage.open_authenticated(token) as talk:
        talk.subscribe(Types=["report"])
        stage.clock.move(seconds=HALF_AN_HOUR - 60)
        with stage.client(token) as client:
            talk.send(token=client.post("/api/v1/auth/refresh").json()["authToken"])
        talk.subscribe(Types=["report"], Ids=[])  # it was heard when this is answered
        stage.clock.move(seconds=120)
        with stage.open_authenticated(stage.log_in(user)) as later:  # the guard has looked meanwhile
            later.subscribe()
        stage.ingest(temperature(stage.clock(), 1))
        assert talk.next()["data"]["value"] == 1


def test_another_account_cannot_take_a_conversation_over(stage: LiveService) -> None:
    with stage.open_authenticated(stage.log_in(stage.new_user())) as talk:
        talk.send(token=stage.log_in(stage.new_user()))
        assert talk.read_close()[0] == 4403


@pytest.mark.rule("rest-154")
def test_a_revoked_api_key_ends_both(stage: LiveService) -> None:
    made = stage.admin.post("/api/v1/api-keys", json={"name": "short", "role": "viewer"}).json()
    with (
        stage.client(made["key"]) as client,
        stage.stream(client) as stream,
        stage.open_authenticated(made["key"]) as talk,
    ):
        talk.subscribe()
        stage.admin.delete(f"/api/v1/api-keys/{made['id']}")
        assert any("API key is invalid" in line for line in stream.rest())
        assert talk.read_close()[0] == 4401


def test_another_role_ends_nothing_since_all_may_listen(stage: LiveService) -> None:
    user = stage.new_user(Role.OPERATOR)
    token = stage.log_in(user)
    with stage.client(token) as client, stage.stream(client, Types="device") as stream:
        assert stage.admin.put(f"/api/v1/users/{user}", json={"role": "viewer"}).status_code == 200
        device = stage.new_device()
        stage.operator.put(f"/api/v1/devices/{device}/friendly-name", json={"name": "Kuno"})
        assert stream.next()["data"]["friendlyName"] == "Kuno"


def test_another_password_ends_the_listening_of_logins_that_it_ends(stage: LiveService) -> None:
    user = stage.new_user()
    token = stage.log_in(user)
    with stage.open_authenticated(token) as talk:
        talk.subscribe()
        stage.admin.put(f"/api/v1/users/{user}", json={"password": PASSWORD + "2"})
        assert talk.read_close()[0] == 4401


def test_when_the_service_stops_everybody_is_told_even_while_somebody_does_not_read(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with run_live_service(sqlite_database) as stage:
        connection = stage.open_tcp()
        connection.sendall(
            f"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stage.key}\r\n\r\n".encode()
        )
        assert connection.recv(12) == b"HTTP/1.1 200"
        listening = stage.stream(httpx.Client(base_url=stage.url, headers=stage.viewer.headers, timeout=30))
        stream = listening.__enter__()
        text = "x" * 60_000
        for first in range(0, 200, 10):
            now = stage.clock() + first
            stage.ingest(*(temperature(now + each, text) for each in range(10)))
            for _ in range(10):
                stream.next()
        talking = stage.open_authenticated()
        talk = talking.__enter__()
        talk.subscribe()
    assert ": the service stops; come again" in stream.rest()
    assert talk.read_close()[0] == 1012
    connection.close()
    listening.__exit__(None, None, None)
    talking.__exit__(None, None, None)
    sqlite_database.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.anyio
async def test_an_api_key_without_end_is_not_asked_for_in_every_second(sqlite_database: Database) -> None:
    clock = Clock()
    gatekeeper = _Counting(sqlite_database, TokenSigner(b"x" * 32), clock)
    key = sqlite_database.write_now(
        api_key_store.insert_api_key, "k", role=Role.VIEWER, expires_at=None, by=COMMAND_LINE, now=clock()
    ).key
    hub = EventHub(clock)
    guard = Reauthorizer(hub, gatekeeper, clock)
    listener = LiveSubscriber(lambda event: event.body, COMMAND_LINE, key)
    hub.add(listener)
    await guard.check(listener)
    for _ in range(8):
        clock.move(seconds=1)
        await guard.recheck(all_bearers=False)
    assert gatekeeper.asked == 1
    clock.move(seconds=3)
    await guard.recheck(all_bearers=False)
    assert gatekeeper.asked == 2
    sqlite_database.close()


class _Counting(BearerAuthenticator):
    """A gatekeeper that counts how often it is asked."""

    asked = 0

    async def authenticate(self, bearer: str) -> Authentication:
        self.asked += 1
        return await super().authenticate(bearer)
