"""nginx and Caddy in front of the service, with the configuration files of the package."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.sync.client import connect

from meshfleet.rest.paths import AUDIT_PATH, LOGIN_PATH
from tests.cli.programs import TEST_TIMEOUT
from tests.cli.shell import Shell
from tests.deployment.proxies import Proxy, run_caddy, run_nginx, run_nginx_for_mqtt
from tests.external_tools import MOSQUITTO_SUB, require
from tests.scenarios.service_process import PASSWORD, ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

pytestmark = pytest.mark.part("deployment")

CLIENT = "127.0.0.2"
"""Address of the clients; the proxies connect from 127.0.0.1."""

NUMBERS = count()
"""Numbers of versions: all tests use one service."""
PROXIES = {"nginx": run_nginx, "caddy": run_caddy}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Run a demo fleet that trusts proxies on this machine."""
    folder = tmp_path_factory.mktemp("service")
    with ServiceProcess(folder, "--demo", "--trusted-proxies", "127.0.0.1") as process:
        yield process


@pytest.fixture(params=PROXIES)
def proxy(request: pytest.FixtureRequest, service: ServiceProcess, tmp_path: Path) -> Iterator[Proxy]:
    """Run a proxy in front of the service."""
    with PROXIES[request.param](tmp_path, urlsplit(service.url).netloc) as running:
        yield running


@contextmanager
def open_client(proxy: Proxy) -> Iterator[httpx.Client]:
    """Log in through a proxy."""
    transport = httpx.HTTPTransport(verify=proxy.tls_context, local_address=CLIENT)
    with httpx.Client(base_url=proxy.url, transport=transport, timeout=TEST_TIMEOUT) as client:
        login = client.post(LOGIN_PATH, json={"username": "admin", "password": PASSWORD})
        assert login.status_code == 200, login.text
        client.headers["Authorization"] = f"Bearer {login.json()['authToken']}"
        yield client


def upload(proxy: Proxy, folder: Path, version: str) -> Result:
    """Log in through a proxy on the command line, and upload a firmware image of 20 MiB."""
    image = folder / "image.raucb"
    image.write_bytes(bytes(20 * 2**20))
    shell = Shell(folder / "home")
    shell.variables["MESHFLEET_TLS_CA"] = str(proxy.authorities)
    shell.text("login", "--url", proxy.url, "--user", "admin", MESHFLEET_PASSWORD=PASSWORD)
    return shell("firmware", "upload", str(image), "--type", "2", "--model", "0018", "--version", version)


def test_the_audit_log_has_the_address_of_the_client(proxy: Proxy) -> None:
    with open_client(proxy) as client:
        client.post("/api/v1/labels", json={"label": "via proxy"})
        rows = client.get(AUDIT_PATH).json()["items"]
    assert rows[0]["address"] == CLIENT, rows[0]


def test_the_service_trusts_the_address_that_the_proxy_sends(proxy: Proxy) -> None:
    response = httpx.get(f"{proxy.url}/readyz", verify=proxy.tls_context)
    assert response.headers["X-Meshfleet-Forwarding"] == "trusted"


def test_a_firmware_image_of_20_mib_is_uploaded(proxy: Proxy, tmp_path: Path) -> None:
    result = upload(proxy, tmp_path, f"1.0.{next(NUMBERS)}")
    assert result.exit_code == 0, result.output


def test_server_sent_events_keep_arriving(proxy: Proxy) -> None:
    with open_client(proxy) as client, client.stream("GET", "/api/v1/stream") as response:
        assert response.status_code == 200
        started = None
        for line in response.iter_lines():
            if line.startswith("data: ") and "time" in (event := json.loads(line.removeprefix("data: "))):
                at = datetime.fromisoformat(event["time"])
                started = started or at
                if at - started > timedelta(seconds=5):
                    break
        else:
            pytest.fail("the stream ended")


def test_a_websocket_is_passed_on(proxy: Proxy) -> None:
    with open_client(proxy) as client:
        token = client.headers["Authorization"].split()[1]
    url = f"wss{proxy.url.removeprefix('https')}/api/v1/live"
    with connect(url, ssl=proxy.tls_context, open_timeout=TEST_TIMEOUT) as connection:
        connection.send(json.dumps({"token": token}))
        connection.send(json.dumps({"subscribe": {}, "lastEventId": ""}))
        assert json.loads(connection.recv(timeout=TEST_TIMEOUT))["type"] == "resync"
        assert json.loads(connection.recv(timeout=TEST_TIMEOUT))["type"] != "resync"


def test_a_proxy_with_a_limit_is_named_when_it_refuses_an_image(
    service: ServiceProcess, tmp_path: Path
) -> None:
    changes = {"client_max_body_size 0;": ""}  # its default is 1 MB
    with run_nginx(tmp_path, urlsplit(service.url).netloc, changes) as proxy:
        result = upload(proxy, tmp_path, "2.0.0")
    assert result.exit_code == 1
    assert "HTTP status 413: a proxy in front of the service does not accept a body" in result.stderr


def test_nginx_is_the_tls_endpoint_of_mqtt(service: ServiceProcess, tmp_path: Path) -> None:
    host, port = service.mqtt["mqtt"]
    with run_nginx_for_mqtt(tmp_path, f"{host}:{port}") as proxy:
        address = urlsplit(proxy.url)
        login = f"-u admin -P {PASSWORD} --cafile {proxy.authorities}"
        arguments = f"-h {address.hostname} -p {address.port} {login} -t mt/gateway/+/device/# -C 1"
        command = [str(require(MOSQUITTO_SUB)), *arguments.split()]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TEST_TIMEOUT)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)
