"""`meshfleet simulate`: many gateways on a broker, or at a service."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from signal import SIGTERM
from typing import TYPE_CHECKING, Any, Self

import pytest

from tests.cli.programs import PahoListener, Program, broker_url, run_command, wait_for_log
from tests.external_tools import MOSQUITTO_PASSWD, require
from tests.row_tables import each_row
from tests.servers import Mosquitto, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

HIDDEN, TOKEN = "correct-horse", "token-of-ada"
MACS = [f"020001b0000{number}" for number in range(3)]
"""MACs of the first gateways with seed 1: the same at every start, so that they stay claimed."""


def simulate(*arguments: str, stdin: str = "", **variables: str) -> Result:
    return run_command("simulate", *arguments, stdin=stdin, **variables)


def password_of(mac: str) -> str:
    return f"secret-of-{mac}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def protected_broker(folder: Path) -> Iterator[Mosquitto]:
    """Run a broker that admits the gateways with the passwords of their claims, and a listener."""
    file = folder / "passwords"
    users = {mac: password_of(mac) for mac in MACS} | {"listener": HIDDEN}
    file.write_text("".join(f"{user}:{password}\n" for user, password in users.items()))
    subprocess.run([require(MOSQUITTO_PASSWD), "-U", file], check=True, capture_output=True)
    with Mosquitto(folder, f"password_file {file}", "allow_anonymous false") as running:
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("open")) as running:
        yield running


class FakeService:
    """HTTP server on its own thread that accepts one admin and claims gateways."""

    def __init__(self, broker: Mosquitto | None) -> None:
        self.requests: list[tuple[str, Any]] = []
        address = ("127.0.0.1", free_port()) if broker is None else broker.address
        self._broker = {"host": address[0], "port": address[1], "tls": False}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._build_handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def respond(self, path: str, token: str, body: Any) -> tuple[int, Any]:
        self.requests.append((path, body))
        if path == "/api/v1/auth/login":
            if body != {"username": "ada", "password": HIDDEN}:
                return 401, {"title": "Unauthorized", "detail": f"not {body['password']}"}
            return 200, {"status": "SUCCESS", "authToken": TOKEN, "sessionId": None}
        assert (path, token) == ("/api/v1/gateways", f"Bearer {TOKEN}")
        mac = body["mac"]
        credentials = {"mac": mac, "deviceId": f"bmac-{mac}", "username": mac, "password": password_of(mac)}
        return 201, {**credentials, "broker": self._broker}

    def _build_handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, response = service.respond(self.path, self.headers.get("Authorization", ""), body)
                data = json.dumps(response).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Suppress the log."""

        return Handler


# --- Options ---


@pytest.mark.rule("gateway-46")
def test_the_help_names_every_option_and_its_default() -> None:
    help_text = re.sub(r"\s+", " ", simulate("--help").output)
    for option in ("broker", "service", "user", "password", "rate", "seconds", "tls-ca", "json", "mode"):
        assert f"--{option}" in help_text
    for option, default in {"gateways": "10", "devices": "50", "seed": "1", "speed": "1.0"}.items():
        assert re.search(rf"--{option} [^\[]*\[default: {default}[\];]", help_text), option
    assert "MESHFLEET_BROKER" in help_text
    assert "MESHFLEET_PASSWORD" in help_text


WRONG = [
    ([], "--broker or --service"),
    (
        ["--broker", "mqtt://127.0.0.1:1", "--service", "http://127.0.0.1", "--user", "ada"],
        "exclude each other",
    ),
    (["--service", "http://127.0.0.1"], "--service needs --user"),
    (["--broker", "nonsense"], "--broker"),
    (["--broker", "mqtt://127.0.0.1:1", "--gateways", "0"], "--gateways"),
    (["--broker", "mqtt://127.0.0.1:1", "--gateways", "50001"], "--gateways"),
    (["--broker", "mqtt://127.0.0.1:1", "--devices", "-1"], "--devices"),
    (["--broker", "mqtt://127.0.0.1:1", "--mode", "both"], "--mode"),
    (["--broker", "mqtt://127.0.0.1:1", "--rate", "0"], "--rate"),
    (["--broker", "mqtt://127.0.0.1:1", "--rate", "nan"], "--rate"),
    (["--broker", "mqtt://127.0.0.1:1", "--seconds", "-1"], "--seconds"),
    (["--broker", "mqtt://127.0.0.1:1", "--seconds", "nan"], "--seconds"),
    (["--broker", "mqtt://127.0.0.1:1", "--speed", "0"], "--speed"),
    (["--broker", "mqtt://127.0.0.1:1", "--seed", "x"], "--seed"),
]


@each_row(("arguments", "message"), WRONG)
def test_a_wrong_value_is_refused_with_a_message(arguments: list[str], message: str) -> None:
    result = simulate(*arguments, MESHFLEET_PASSWORD=HIDDEN)
    assert (result.exit_code, message in result.output) == (2, True), result.output
    assert HIDDEN not in result.output


# --- On a broker ---


def test_every_gateway_has_its_own_devices(broker: Mosquitto) -> None:
    options = [
        "simulate",
        "--gateways",
        "3",
        "--devices",
        "4",
        "--mode",
        "decoded",
        "--rate",
        "200",
        "--seed",
        "1",
    ]
    devices: dict[str, set[str]] = {}
    with PahoListener(broker) as listener, Program(*options, MESHFLEET_BROKER=broker_url(broker)) as program:
        while sorted(map(len, devices.values())) != [5, 5, 5]:
            parts = listener.receive("mt/gateway/.*/device/.*/heartbeat").topic.split("/")
            devices.setdefault(parts[2], set()).add(parts[4])
        assert listener.receive("mt/gateway/.*/measurement.*").topic.split("/")[5] == "measurement-decoded"
        assert program.wait_for_exit(SIGTERM)[0] == 0
    assert sorted(devices) == MACS
    assert len(set.union(*devices.values())) == 15


def test_another_seed_gives_other_gateways(broker: Mosquitto) -> None:
    options = ["simulate", "--gateways", "1", "--devices", "1", "--rate", "50", "--seed", "2"]
    with PahoListener(broker) as listener, Program(*options, "--broker", broker_url(broker)):
        assert listener.receive("mt/gateway/.*").topic.split("/")[2] not in MACS


# --- At a service ---


def test_claimed_gateways_connect_with_their_credentials(protected_broker: Mosquitto, folder: Path) -> None:
    options = [
        "--user",
        "ada",
        "--gateways",
        "3",
        "--devices",
        "2",
        "--rate",
        "50",
        "--seconds",
        "1",
        "--json",
    ]
    with (
        FakeService(protected_broker) as service,
        PahoListener(protected_broker, username="listener", password=HIDDEN) as listener,
        Program("simulate", "--service", service.url, *options, MESHFLEET_PASSWORD=HIDDEN) as program,
    ):
        listener.receive("mt/gateway/.*")
        code, output, errors = program.wait_for_exit()
    assert (code, errors) == (0, "")
    assert json.loads(output.splitlines()[-1])["connected"] == 3
    assert sorted(body["mac"] for path, body in service.requests if path.endswith("gateways")) == MACS
    found = wait_for_log(folder, r"New client connected from \S+ as (\w+) .*u'(\w+)'", 3)
    assert {(mac, mac) for mac in MACS} <= set(found)
    for secret in (HIDDEN, TOKEN, "secret-of"):
        assert secret not in output


def assert_fails(result: Result, pattern: str) -> None:
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    line = result.output.splitlines()[-1]
    assert re.search(pattern, line), line
    for secret in (HIDDEN, TOKEN, "secret-of", "Traceback"):
        assert secret not in result.output


def test_rejected_credentials_are_an_error_of_one_line(protected_broker: Mosquitto) -> None:
    with FakeService(protected_broker) as service:
        result = simulate(
            *("--service", service.url, "--user", "ada", "--password", HIDDEN),
            *("--gateways", "1", "--devices", "0", "--seed", "2"),  # gateways unknown to the broker
        )
    assert_fails(result, r"mqtt://127\.0\.0\.1")
    assert len(result.output.splitlines()) == 1


def test_a_password_is_prompted_for_and_not_shown() -> None:
    with FakeService(None) as service:
        options = ["--service", service.url, "--user", "ada", "--gateways", "1"]
        result = simulate(*options, stdin=f"{HIDDEN}\n")
    assert_fails(result, "Connection refused")  # the login succeeded, the broker is missing
    assert result.output.startswith("Password: ")


def test_an_unusable_service_is_an_error_of_one_line() -> None:
    wrong = "hunter22"
    login = ["--user", "ada", "--password"]
    with FakeService(None) as service:
        result = simulate("--service", service.url, *login, wrong)
    assert_fails(result, "does not accept this user name and password")
    assert wrong not in result.output
    assert_fails(simulate("--service", service.url, *login, HIDDEN), "cannot be reached")
    assert_fails(simulate("--service", f"http://ada:{HIDDEN}@host", *login, HIDDEN), "service")


def test_the_service_option_overrides_a_broker_in_the_environment() -> None:
    with FakeService(None) as service:
        options = ["--service", service.url, "--user", "ada", "--password", HIDDEN, "--gateways", "1"]
        result = simulate(*options, MESHFLEET_BROKER="mqtt://127.0.0.1")
    assert_fails(result, "Connection refused")
    assert service.requests
