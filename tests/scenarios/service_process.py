"""The service as a program, and what people do around it."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import httpx

from meshfleet.mqtt.codec.packets import Connack, Suback, Subscribe
from meshfleet.rest import LOGIN_PATH, Role
from tests.cli.programs import TEST_TIMEOUT, Program
from tests.databases import sqlite_template_file
from tests.mqtt.broker.raw_client import RawClient
from tests.servers import NO_TRUSTED_AUTHORITIES, ServerAddress, free_port
from tests.service.embedded_broker.mqtt_accounts import Credentials
from tests.service.embedded_broker.running_broker import build_connect

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

PASSWORD = "correct-horse-battery"  # noqa: S105 # of everybody


class ServiceProcess:
    """`meshfleet serve` in a process of its own; always in the same folder and at the same ports."""

    def __init__(
        self, folder: Path, *arguments: str, trusting: ssl.SSLContext = NO_TRUSTED_AUTHORITIES
    ) -> None:
        self.data = folder / "data"
        if "--database" not in arguments and not self.data.exists():
            # To make all tables takes longer than the rest of the first start.
            self.data.mkdir(mode=0o700, parents=True)
            shutil.copy(sqlite_template_file(), self.data)
        given = ["--data", str(self.data), "--http", f"127.0.0.1:{free_port()}", *arguments]
        self._command = ["serve", "--json", *given]
        self._trusting = trusting
        self._program: Program
        self._token = ""
        self.url = ""
        self.mqtt: dict[str, ServerAddress] = {}
        """Where each scheme is spoken."""
        self._clients: list[RawClient] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._program.__exit__()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._token = ""
        with ExitStack() as stack:
            self._program = stack.enter_context(Program(*self._command, MESHFLEET_ADMIN_PASSWORD=PASSWORD))
            told = json.loads(self._program.read_line())
            stack.pop_all()  # it has started, and stays
        self.url = told["url"]
        places = map(urlsplit, told["mqtt"])
        self.mqtt = {each.scheme: ServerAddress(str(each.hostname), int(each.port or 0)) for each in places}

    def kill(self) -> None:
        """Let it end without a moment to do anything."""
        code, _, errors = self._program.wait_for_exit(SIGKILL)
        assert code == -SIGKILL, f"it ended by itself, with {code}: {errors}"

    def stop(self) -> tuple[int, str]:
        """Ask it to end: its exit code, and what it had to say on standard error."""
        code, _, errors = self._program.wait_for_exit(SIGTERM)
        return code, errors

    @property
    def memory(self) -> float:
        """MiB of memory that it has."""
        return self._program.memory

    def is_ready(self) -> bool:
        """Whether it says that all is well."""
        return not self.unready_reasons()

    def unready_reasons(self) -> list[str]:
        """The codes of the reasons why it is not ready."""
        answer = httpx.get(f"{self.url}/readyz", verify=self._trusting, timeout=TEST_TIMEOUT)
        assert answer.status_code in {200, 503}, answer.text
        codes = [each["code"] for each in answer.json().get("reasons", [])]
        assert bool(codes) is (answer.status_code == 503), answer.text
        return codes

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """Ask as admin, who logs in after each start, and when the token has ended."""
        with httpx.Client(base_url=self.url, verify=self._trusting, timeout=TEST_TIMEOUT) as client:
            self._token = self._token or _log_in(client)
            request = client.build_request(method, path, json=body, headers=headers)
            answer = client.send(request, auth=self._bearer)
            if answer.status_code == 401:
                self._token = _log_in(client)
                answer = client.send(request, auth=self._bearer)
        assert answer.is_success, answer.text
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        return answer.json() if is_json else answer.text

    def _bearer(self, request: httpx.Request) -> httpx.Request:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request

    def upload(self, model: str, version: str, image: bytes, **fields: str) -> str:
        """Bring a firmware into the catalogue; its id. `fields` are others of the form."""
        self.call("GET", "/api/v1/auth/me")  # so that somebody is logged in
        with httpx.Client(base_url=self.url, verify=self._trusting, timeout=TEST_TIMEOUT) as client:
            answer = client.post(
                "/api/v1/firmware",
                data={"modelNumber": model, "version": version, **fields},
                files={"image": (f"{model}-{version}.zip", image)},
                auth=self._bearer,
            )
        assert answer.status_code == 201, answer.text
        firmware: str = answer.json()["id"]
        return firmware

    def claim(self, mac: str) -> Credentials:
        """Claim a gateway."""
        told = self.call("POST", "/api/v1/gateways", {"mac": mac})
        return Credentials(told["username"], told["password"])

    def release(self, mac: str) -> None:
        """Give a gateway up."""
        self.call("DELETE", f"/api/v1/gateways/{mac}")

    def add_user(self, name: str, role: Role) -> Credentials:
        """Let somebody in."""
        self.call("POST", "/api/v1/users", {"username": name, "password": PASSWORD, "role": role})
        return Credentials(name, PASSWORD)

    async def try_connect(self, who: Credentials, **options: object) -> tuple[RawClient, Connack]:
        """Somebody connects to the broker, and what it says to that. `options` are those of a CONNECT."""
        client = await RawClient.open(self.mqtt["mqtt"].port)
        self._clients.append(client)
        client.send(build_connect(who, **options))
        return client, await client.expect(Connack)

    async def connect(self, who: Credentials, **options: object) -> RawClient:
        """Somebody who is let in."""
        client, answer = await self.try_connect(who, **options)
        assert answer.code == 0, answer
        return client

    async def connect_subscriber(self, who: Credentials, topic_filter: str, **options: object) -> RawClient:
        """Somebody who is let in, and has subscribed."""
        client = await self.connect(who, **options)
        client.send(Subscribe(1, ((topic_filter, 1),)))
        assert await client.expect(Suback) == Suback(1, (1,))
        return client

    async def disconnect_all(self) -> None:
        """End all these connections."""
        while self._clients:
            await self._clients.pop().close()


def _log_in(client: httpx.Client) -> str:
    login = client.post(LOGIN_PATH, json={"username": "admin", "password": PASSWORD})
    assert login.status_code == 200, login.text
    token: str = login.json()["authToken"]
    return token


def loopback_options(*listeners: str) -> list[str]:
    """The arguments for these entrances, each at a port that stays the same."""
    return [part for each in listeners for part in (each, f"127.0.0.1:{free_port()}")]
