"""Prometheus and its Alertmanager with the files of the package, on free ports of the loopback interface."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

from tests.deployment.monitoring_files import ALERTS, FILES
from tests.external_tools import ALERTMANAGER, PROMETHEUS, require
from tests.program_logs import register_log
from tests.servers import (
    NO_TRUSTED_AUTHORITIES,
    ServerAddress,
    free_port,
    start_program,
    wait_until_listening,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_TIMEOUT_SECONDS = 30.0


class Prometheus(NamedTuple):
    """Running Prometheus."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression now."""
        data = self._get("query", query=expression)
        series: list[dict[str, Any]] = data["result"]
        return series

    def load_alerts(self) -> list[dict[str, Any]]:
        """Return all pending and firing alerts."""
        alerts: list[dict[str, Any]] = self._get("alerts")["alerts"]
        return alerts

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        response = httpx.get(
            f"{self.url}/api/v1/{path}",
            params=parameters,
            verify=NO_TRUSTED_AUTHORITIES,
            timeout=_TIMEOUT_SECONDS,
        )
        assert response.status_code == 200, response.text
        data: dict[str, Any] = response.json()["data"]
        return data


@contextmanager
def run_prometheus(
    folder: Path, service: str, *, key: str, authorities: Path, alertmanager: ServerAddress
) -> Iterator[Prometheus]:
    """Run Prometheus with the example of the package and all alerts, every second and without waiting.

    `service` is HOST:PORT of a service with TLS, and `authorities` the file of its authority.
    """
    address = ServerAddress("127.0.0.1", free_port())
    text = (FILES / "prometheus" / "prometheus.yml").read_text("utf-8")
    for old, new in (
        ("interval: 15s", "interval: 1s"),
        ("localhost:8080", service),
        ("# scheme: https", "scheme: https"),
        (
            "# tls_config: { server_name: fleet.example.org, ca_file: /etc/ssl/fleet-ca.pem }",
            f"tls_config: {{ ca_file: {authorities} }}",
        ),
        ("# alerting:", "alerting:"),
        ("#   alertmanagers:", "  alertmanagers:"),
        ("#     - static_configs:", "    - static_configs:"),
        (
            '#         - targets: ["localhost:9093"]',
            f'        - targets: ["{alertmanager.host}:{alertmanager.port}"]',
        ),
    ):
        assert old in text, old
        text = text.replace(old, new)
    (folder / "prometheus.yml").write_text(text, "utf-8")
    (folder / "meshfleet.key").write_text(key, "utf-8")
    alerts = ALERTS.read_text("utf-8")
    assert alerts.count("for: 5m") > 1
    (folder / "alerts.yml").write_text(alerts.replace("for: 5m", "for: 1s"), "utf-8")
    command = [
        str(require(PROMETHEUS)),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address.host}:{address.port}",
    ]
    with _run(command, folder / "prometheus.log", address):
        yield Prometheus(f"http://{address.host}:{address.port}")


@contextmanager
def run_alertmanager(folder: Path, webhook: str) -> Iterator[ServerAddress]:
    """Run an Alertmanager that sends all alerts to a URL at once."""
    address = ServerAddress("127.0.0.1", free_port())
    config = {
        "route": {"receiver": "webhook", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "webhook", "webhook_configs": [{"url": webhook}]}],
    }
    file = folder / "alertmanager.json"  # JSON is YAML too
    file.write_text(json.dumps(config), "utf-8")
    command = [
        str(require(ALERTMANAGER)),
        f"--config.file={file}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={address.host}:{address.port}",
        "--cluster.listen-address=",
    ]
    with _run(command, folder / "alertmanager.log", address):
        yield address


@contextmanager
def _run(command: Sequence[str], log: Path, address: ServerAddress) -> Iterator[None]:
    process = start_program(command, register_log(log.stem, log))
    try:
        wait_until_listening(process, address, log)
        yield
    finally:
        process.terminate()
        process.wait(_TIMEOUT_SECONDS)


class Webhook(NamedTuple):
    """HTTP server that receives alerts."""

    url: str
    received: list[dict[str, Any]]
    """Alerts in the order in which they arrived."""

    def find(self, status: str, gateway: str) -> list[dict[str, Any]]:
        """Return the alerts about a gateway with a status, `firing` or `resolved`."""
        return [
            each
            for each in self.received
            if each["status"] == status and each["labels"].get("gateway") == gateway
        ]


@contextmanager
def run_webhook() -> Iterator[Webhook]:
    """Run an HTTP server that receives alerts of an Alertmanager."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.extend(json.loads(body)["alerts"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="webhook")
        thread.start()
        try:
            yield Webhook(f"http://127.0.0.1:{server.server_port}", received)
        finally:
            server.shutdown()
            thread.join()
