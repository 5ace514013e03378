"""`meshfleet reload`, SIGHUP and `meshfleet healthcheck`, with the service as a program."""

from __future__ import annotations

import json
import os
import socket
from contextlib import closing
from queue import Queue
from signal import SIGHUP, SIGTERM
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from tests.cli.programs import TEST_TIMEOUT, Program, open_client, run_command
from tests.eventually import eventually
from tests.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PASSWORD = "correct-horse-battery"  # noqa: S105 # not a real secret


class ConfiguredService:
    """Service with a settings file, and an admin of it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "mine.toml"
        self._first = f'data = "{folder / "data"}"\nhttp = "127.0.0.1:{free_port()}"\n'
        self.configure("")
        self.notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notifications.bind(str(folder / "notify"))
        self._messages: Queue[str] = Queue()
        # In a thread: the socket holds only few messages that are not read.
        Thread(target=self._receive, daemon=True).start()
        self.program = Program(
            "serve",
            "--json",
            "--config",
            str(self.file),
            MESHFLEET_ADMIN_PASSWORD=PASSWORD,
            NOTIFY_SOCKET=str(folder / "notify"),
            WATCHDOG_USEC="20000000",
        )
        self.url = json.loads(self.program.read_line())["url"]
        self.client = open_client(self.url, PASSWORD)
        eventually(lambda: self.client.get("/readyz").status_code == 200, "that the service is ready")
        token = self.client.headers["Authorization"].removeprefix("Bearer ")
        self._login = {"MESHFLEET_URL": self.url, "MESHFLEET_TOKEN": token}

    def configure(self, text: str) -> None:
        """Write the settings file; the service does not know it yet."""
        self.file.write_text(self._first + text)

    def run(self, *arguments: str) -> Any:
        """Run a command as admin."""
        return run_command(*arguments, **self._login)

    def wait_for_message(self, expected: str) -> str:
        """Wait for a message to systemd that begins like this."""
        while not (message := self._messages.get(timeout=TEST_TIMEOUT)).startswith(expected):
            pass
        return message

    def _receive(self) -> None:
        while message := self.notifications.recv(4096).decode():
            self._messages.put(message)

    def close(self) -> None:
        """Close the connections of the test."""
        self.client.close()
        self.notifications.shutdown(socket.SHUT_RD)
        self.notifications.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ConfiguredService]:
    configured = ConfiguredService(tmp_path)
    with configured.program, closing(configured):
        yield configured


@pytest.mark.rule("rest-224")
def test_the_command_says_what_is_applied_and_what_needs_a_restart(service: ConfiguredService) -> None:
    assert service.run("reload").stdout == "No setting has changed.\n"
    service.configure(
        'acks = false\ntrusted-proxies = ["127.0.0.1"]\nlog-level = "info"\n'
        "[limits]\nsubscriptions = 5\n[retention]\nevent = 7200\n[requests]\nmax-age = 3\nat-once = 2\n"
        "[metrics]\nper-gateway = false\n"
    )
    forwarded = {"X-Forwarded-For": "192.0.2.7"}
    assert service.client.get("/api/v1/auth/me", headers=forwarded).status_code == 200
    assert service.run("reload").stdout == (
        "In use now: trusted-proxies, requests.max-age, requests.at-once, metrics.per-gateway, log-level,"
        " retention.event, limits.subscriptions. Restart the service for: acks.\n"
    )
    assert json.loads(service.run("reload", "--json").stdout) == {"applied": [], "needsRestart": ["acks"]}
    rows = service.client.get("/api/v1/audit?Action=service.reload").json()["items"]
    assert [row["detail"]["needsRestart"] for row in rows] == [["acks"], ["acks"], []]
    assert service.client.post("/api/v1/reload", headers=forwarded).status_code == 200
    (newest, *_) = service.client.get("/api/v1/audit?Action=service.reload").json()["items"]
    assert (newest["target"], newest["actor"], newest["address"]) == ("settings", "admin", "192.0.2.7")


@pytest.mark.rule("rest-224")
def test_a_wrong_file_changes_nothing_and_is_explained(service: ConfiguredService) -> None:
    service.configure('log-level = "info"\nacks = "perhaps"\n')
    refused = service.run("reload")
    assert refused.exit_code == 1
    assert refused.stderr == f"Error: {service.file}: acks: 'perhaps' is neither on nor off\n"
    response = service.client.post("/api/v1/reload")
    assert (response.status_code, response.json()["code"]) == (409, "wrong-settings")
    assert response.json()["errors"] == [
        {"field": f"{service.file}: acks", "message": "'perhaps' is neither on nor off"}
    ]
    service.program.send_signal(SIGHUP)
    eventually(lambda: "the settings cannot be reloaded" in service.program.errors, "that it is logged")
    service.configure("")
    assert json.loads(service.run("reload", "--json").stdout) == {"applied": [], "needsRestart": []}


@pytest.mark.rule("rest-224")
def test_a_settings_file_that_has_vanished_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "meshfleet.toml"
    file.write_text(f'data = "{tmp_path / "data"}"\nhttp = "127.0.0.1:0"\nmqtt = "off"\nacks = false\n')
    with Program("serve", "--json", before=f"cd {tmp_path}; unset MESHFLEET_MQTT") as program:
        program.read_line()
        file.unlink()
        program.send_signal(SIGHUP)
        reason = "meshfleet.toml: cannot be read: No such file or directory"
        message = f"the settings cannot be reloaded; the previous settings stay in use: {reason}\n"
        eventually(lambda: message in program.errors, "that it is logged")
        file.write_text(f'data = "{tmp_path / "data"}"\nhttp = "127.0.0.1:0"\nmqtt = "off"\nacks = true\n')
        program.send_signal(SIGHUP)
        message = "settings reloaded; in use now: no changes; a restart is needed for: acks\n"
        eventually(lambda: message in program.errors, "that nothing else has changed")


@pytest.mark.rule("rest-224")
def test_a_hangup_before_the_service_runs_reloads_its_settings_and_later_ones_do_not_end_it(
    tmp_path: Path,
) -> None:
    first, file = tmp_path / "first", tmp_path / "mine.toml"
    settings = f'data = "{tmp_path / "data"}"\nhttp = "127.0.0.1:0"\n'
    os.mkfifo(file)
    with Program("serve", "--json", "--config", str(file)) as program:
        with file.open("w") as opened:  # when the service reads its settings
            program.send_signal(SIGHUP)
            first.write_text(f"{settings}acks = false\n")
            first.rename(file)
            opened.write(settings)
        program.read_line()
        eventually(
            lambda: "a restart is needed for: acks" in program.errors, "that the settings are reloaded"
        )
        program.send_signal(SIGTERM)

        def hang_up() -> bool:
            program.send_signal(SIGHUP)
            return not program.is_running

        eventually(hang_up, "that it stops")
        assert program.wait_for_exit()[0] == 0


def test_only_admins_may_reload(service: ConfiguredService) -> None:
    body = {"name": "monitoring", "role": "operator"}
    key = service.client.post("/api/v1/api-keys", json=body).json()["key"]
    response = service.client.post("/api/v1/reload", headers={"Authorization": f"Bearer {key}"})
    assert response.status_code == 403


@pytest.mark.rule("rest-224")
def test_systemd_follows_start_reload_and_stop(service: ConfiguredService) -> None:
    assert service.wait_for_message("EXTEND_TIMEOUT_USEC").split("STATUS=")[1].startswith("Starting: ")
    assert service.wait_for_message("READY=1") == "READY=1"
    assert service.wait_for_message("WATCHDOG=1")
    assert service.wait_for_message("STATUS=") == "STATUS=0 of 0 devices, 0 gateways, 0 reports/s"
    service.configure('log-level = "error"\n')
    service.program.send_signal(SIGHUP)
    assert service.wait_for_message("RELOADING=1\nMONOTONIC_USEC=")
    assert service.wait_for_message("READY=1")
    code, _, errors = service.program.wait_for_exit(SIGTERM)
    assert service.wait_for_message("STOPPING=1")
    assert code == 0
    assert errors == "", "the line about the reload is a warning, and the new level is error"


# --- meshfleet healthcheck ---


def test_the_health_check_asks_the_service_of_the_settings(service: ConfiguredService) -> None:
    checked = run_command("healthcheck", "--config", str(service.file))
    assert (checked.exit_code, checked.stdout) == (0, "The service is ready.\n")
    elsewhere = run_command(
        "healthcheck", "--config", str(service.file), "--http", f"127.0.0.1:{free_port()}"
    )
    assert elsewhere.exit_code == 1
    assert "does not respond: " in elsewhere.stdout
    port_0 = run_command("healthcheck", "--http", "127.0.0.1:0")
    assert (port_0.exit_code, port_0.stderr) == (
        1,
        "Error: http has port 0, so the port of the service is unknown: set a port.\n",
    )
    wrong = run_command("healthcheck", "--http", "x")
    assert (wrong.exit_code, wrong.stderr[:14]) == (1, "Error: --http:")


def test_the_health_check_uses_the_certificate_of_the_service(tmp_path: Path) -> None:
    pair = trustme.CA().issue_cert("fleet.example.org")
    pair.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    pair.private_key_pem.write_to_path(tmp_path / "key.pem")
    variables = {
        "MESHFLEET_DATA": str(tmp_path / "data"),
        "MESHFLEET_HTTP": f"0.0.0.0:{free_port()}",
        "MESHFLEET_PUBLIC_URL": "https://fleet.example.org",
        "MESHFLEET_TLS_CERT": str(tmp_path / "cert.pem"),
        "MESHFLEET_TLS_KEY": str(tmp_path / "key.pem"),
        "http_proxy": "http://127.0.0.1:1",
        "https_proxy": "http://127.0.0.1:1",
    }
    with Program("serve", "--json", **variables) as program:
        program.read_line()
        eventually(lambda: run_command("healthcheck", **variables).exit_code == 0, "that it is ready")
        result = json.loads(run_command("healthcheck", "--json", **variables).stdout)
    assert result == {"status": "ready", "reasons": []}
