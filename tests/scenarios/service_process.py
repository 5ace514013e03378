"""Service as a separate program, with methods of its administrator and its MQTT clients."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from signal import SIGHUP, SIGKILL, SIGTERM
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import httpx

from meshfleet.mqtt.codec.packets import Connack, Suback, Subscribe
from tests.cli.programs import TEST_TIMEOUT, Program, log_in
from tests.databases import sqlite_template_file
from tests.mqtt.broker.raw_client import RawClient
from tests.servers import NO_TRUSTED_AUTHORITIES, ServerAddress, free_port
from tests.service.embedded_broker.mqtt_accounts import Credentials
from tests.service.embedded_broker.running_broker import build_connect

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from meshfleet.rest.accounts import Role

PASSWORD = "correct-horse-battery"  # noqa: S105 # the password of every account


class ServiceProcess:
    """`meshfleet serve` in its own process, always with the same data directory and ports."""

    def __init__(
        self, directory: Path, *arguments: str, trusting: ssl.SSLContext = NO_TRUSTED_AUTHORITIES
    ) -> None:
        self.data = directory / "data"
        if "--database" not in arguments and not self.data.exists():
            # Creating all tables takes longer than the rest of the first start.
            self.data.mkdir(mode=0o700, parents=True)
            shutil.copy(sqlite_template_file(), self.data)
        options = ["--data", str(self.data), "--http", f"127.0.0.1:{free_port()}", *arguments]
        self._command = ["serve", "--json", *options]
        self._trusting = trusting
        self._program: Program
        self._token = ""
        self.url = ""
        self.mqtt: dict[str, ServerAddress] = {}
        """Address of the listener of each scheme."""
        self._clients: list[RawClient] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._program.__exit__()

    def start(self) -> None:
        """Start the service, and wait until it listens."""
        self._token = ""
        with ExitStack() as stack:
            self._program = stack.enter_context(Program(*self._command, MESHFLEET_ADMIN_PASSWORD=PASSWORD))
            started = json.loads(self._program.read_line())
            stack.pop_all()  # keeps it running
        self.url = started["url"]
        urls = map(urlsplit, started["mqtt"])
        self.mqtt = {url.scheme: ServerAddress(str(url.hostname), int(url.port or 0)) for url in urls}

    def add_options(self, *arguments: str) -> None:
        """Add options for the next start."""
        self._command += arguments

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        code, _, errors = self._program.wait_for_exit(SIGKILL)
        assert code == -SIGKILL, f"the service had ended with {code}: {errors}"

    def stop(self) -> tuple[int, str]:
        """Stop the service with SIGTERM. Return its exit code and its output on standard error."""
        code, _, errors = self._program.wait_for_exit(SIGTERM)
        return code, errors

    def hang_up(self) -> None:
        """Send SIGHUP, which makes the service reload its settings."""
        self._program.send_signal(SIGHUP)

    @property
    def errors(self) -> str:
        """Standard error so far."""
        return self._program.errors

    @property
    def memory(self) -> float:
        """Memory of the process in MiB."""
        return self._program.memory

    def is_ready(self) -> bool:
        """Return whether the service reports that it is ready."""
        return not self.unready_reasons()

    def unready_reasons(self) -> list[str]:
        """Return the codes of the reasons why the service is not ready."""
        response = httpx.get(f"{self.url}/readyz", verify=self._trusting, timeout=TEST_TIMEOUT)
        assert response.status_code in {200, 503}, response.text
        codes = [reason["code"] for reason in response.json().get("reasons", [])]
        assert bool(codes) is (response.status_code == 503), response.text
        return codes

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """Call the REST API as admin. Log in after each start, and when the token has expired."""
        with httpx.Client(base_url=self.url, verify=self._trusting, timeout=TEST_TIMEOUT) as client:
            self._token = self._token or self._log_in()
            request = client.build_request(method, path, json=body, headers=headers)
            response = client.send(request, auth=self._bearer)
            if response.status_code == 401:
                self._token = self._log_in()
                response = client.send(request, auth=self._bearer)
        assert response.is_success, response.text
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        return response.json() if is_json else response.text

    def _log_in(self) -> str:
        login = log_in(self.url, PASSWORD, trusting=self._trusting)
        assert login.status_code == 200, login.text
        token: str = login.json()["authToken"]
        return token

    def _bearer(self, request: httpx.Request) -> httpx.Request:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request

    def upload(self, model: str, version: str, image: bytes, **fields: str) -> str:
        """Upload firmware and return its id. `fields` are further fields of the form."""
        self.call("GET", "/api/v1/auth/me")  # logs in if needed
        with httpx.Client(base_url=self.url, verify=self._trusting, timeout=TEST_TIMEOUT) as client:
            response = client.post(
                "/api/v1/firmware",
                data={"modelNumber": model, "version": version, **fields},
                files={"image": (f"{model}-{version}.zip", image)},
                auth=self._bearer,
            )
        assert response.status_code == 201, response.text
        firmware: str = response.json()["id"]
        return firmware

    def claim(self, mac: str) -> Credentials:
        """Claim a gateway, and return its credentials."""
        claim = self.call("POST", "/api/v1/gateways", {"mac": mac})
        return Credentials(claim["username"], claim["password"])

    def release(self, mac: str) -> None:
        """Release a gateway."""
        self.call("DELETE", f"/api/v1/gateways/{mac}")

    def add_user(self, name: str, role: Role) -> Credentials:
        """Create a user, and return the credentials."""
        self.call("POST", "/api/v1/users", {"username": name, "password": PASSWORD, "role": role})
        return Credentials(name, PASSWORD)

    async def try_connect(self, who: Credentials, **options: object) -> tuple[RawClient, Connack]:
        """Connect to the broker, and return the client and the CONNACK. `options` are those of a CONNECT."""
        client = await RawClient.open(self.mqtt["mqtt"].port)
        self._clients.append(client)
        client.send(build_connect(who, **options))
        return client, await client.expect(Connack)

    async def connect(self, who: Credentials, **options: object) -> RawClient:
        """Connect to the broker; the connection must be accepted."""
        client, connack = await self.try_connect(who, **options)
        assert connack.code == 0, connack
        return client

    async def connect_subscriber(self, who: Credentials, topic_filter: str, **options: object) -> RawClient:
        """Connect to the broker and subscribe; both must be accepted."""
        client = await self.connect(who, **options)
        client.send(Subscribe(1, ((topic_filter, 1),)))
        assert await client.expect(Suback) == Suback(1, (1,))
        return client

    async def disconnect_all(self) -> None:
        """Close all connections that were opened here."""
        while self._clients:
            await self._clients.pop().close()


def loopback_options(*listeners: str) -> list[str]:
    """Return the options for these listeners, each at a port that stays the same."""
    return [part for listener in listeners for part in (listener, f"127.0.0.1:{free_port()}")]
