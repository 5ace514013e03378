"""A demo fleet, watched by a real Prometheus and Alertmanager with the files of the package."""

from __future__ import annotations

import ssl
import subprocess
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest
import trustme
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from meshfleet.db import connect_database
from meshfleet.db.bulk import insert_rows
from meshfleet.db.samples import DAY_MS
from meshfleet.db.tables import backup
from meshfleet.rest.operations import StoragePart
from meshfleet.service import clock
from meshfleet.service.storage.store import save_sizes
from meshfleet.testing import emulated_gateway
from tests.cli.programs import TEST_TIMEOUT
from tests.deployment.monitoring_files import PanelQuery, list_queries
from tests.deployment.monitoring_programs import (
    Prometheus,
    Webhook,
    run_alertmanager,
    run_prometheus,
    run_webhook,
)
from tests.eventually import eventually
from tests.external_tools import PROMTOOL, require
from tests.scenarios.service_process import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

pytestmark = pytest.mark.part("monitoring")

GATEWAY, BROKEN_GATEWAY = "02005e0000fe", "02005e0000fd"

WITHOUT_SERIES = {"meshfleet_integration_queue", "meshfleet_integration_failures_total"}
"""Metrics that exist only in a service with an integration, which the demo has not."""


class WatchedService(NamedTuple):
    """Service with a Prometheus that reads it, and an Alertmanager that reports to a webhook."""

    service: ServiceProcess
    viewer: httpx.Client
    """Client with an API key."""
    prometheus: Prometheus
    webhook: Webhook


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedService]:
    """Run a demo fleet with TLS, Prometheus and Alertmanager."""
    folder = tmp_path_factory.mktemp("watched")
    authority, trusting = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(trusting)
    authorities = folder / "ca.pem"
    authority.cert_pem.write_to_path(authorities)
    pair = authority.issue_cert("127.0.0.1")
    pair.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    pair.private_key_pem.write_to_path(folder / "key.pem")
    options = ["--demo", "--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem")]
    with ExitStack() as stack:
        service = stack.enter_context(ServiceProcess(folder, *options, trusting=trusting))
        key = service.call("POST", "/api/v1/api-keys", {"name": "prometheus", "role": "viewer"})["key"]
        headers = {"Authorization": f"Bearer {key}"}
        viewer = stack.enter_context(httpx.Client(base_url=service.url, headers=headers, verify=trusting))
        webhook = stack.enter_context(run_webhook())
        alertmanager = stack.enter_context(run_alertmanager(folder, webhook.url))
        prometheus = stack.enter_context(
            run_prometheus(
                folder,
                urlsplit(service.url).netloc,
                key=key,
                authorities=authorities,
                alertmanager=alertmanager,
            )
        )
        yield WatchedService(service, viewer, prometheus, webhook)


def test_a_scrape_has_no_faults(watched: WatchedService) -> None:
    text = watched.viewer.get("/metrics").text
    command = [str(require(PROMTOOL)), "check", "metrics"]
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_gateway_that_is_cut_off_alerts_and_every_panel_shows_something(watched: WatchedService) -> None:
    service, viewer, prometheus, webhook = watched
    credentials = service.claim(GATEWAY)
    address = service.mqtt["mqtt"]
    broker = f"mqtt://{credentials.user}:{credentials.password}@{address.host}:{address.port}"
    _publish_unreadable_report(service)
    with emulated_gateway(mac=GATEWAY, devices=3, speed=20, broker=broker) as gateway:
        _cause_events(service, gateway.devices[0])
        with viewer.stream("GET", "/api/v1/stream", timeout=TEST_TIMEOUT) as stream:
            assert any(line.startswith("event:") for line in stream.iter_lines())
        eventually(lambda: prometheus.query(f'meshfleet_gateway_connected{{gateway="{GATEWAY}"}} == 1'))
    (alert,) = eventually(lambda: webhook.find("firing", GATEWAY), "an alert")
    assert alert["labels"]["alertname"] == "GatewayAway"
    assert GATEWAY in alert["annotations"]["description"]
    eventually(lambda: prometheus.query(f'meshfleet_devices_silent{{gateway="{GATEWAY}"}} == 3'))

    for query in list_queries("fleet", "service"):
        if not query.metrics & WITHOUT_SERIES:
            _wait_for_series(prometheus, query)

    texts = [text for each in prometheus.load_alerts() for text in each["annotations"].values()]
    assert [text for text in texts if "error" in text] == []
    with emulated_gateway(mac=GATEWAY, devices=3, speed=20, broker=broker):
        eventually(lambda: webhook.find("resolved", GATEWAY), "the end of the alert")


def _cause_events(service: ServiceProcess, device: str) -> None:
    """Cause what the demo does not: a request, backups, and a disk that gets full."""
    path = f"/api/v1/devices/bmac-{device}"
    eventually(lambda: service.call("GET", path)["connectivity"]["connected"], "a connected device")
    service.call("POST", f"{path}/requests", {"operation": "read-decoded", "identifier": "battery-level"})
    with closing(connect_database("sqlite", service.data)) as database:
        database.write_now(_insert_history, clock.now())
    service.call("GET", "/api/v1/storage")  # measures again


def _publish_unreadable_report(service: ServiceProcess) -> None:
    gateway = service.claim(BROKEN_GATEWAY)
    client = Client(CallbackAPIVersion.VERSION2, client_id=gateway.user)
    client.username_pw_set(gateway.user, gateway.password)
    client.connect(*service.mqtt["mqtt"])
    client.loop_start()
    topic = f"mt/gateway/{BROKEN_GATEWAY}/device/{BROKEN_GATEWAY}/property/8100"
    client.publish(topic, b"{", 1).wait_for_publish(TEST_TIMEOUT)
    client.disconnect()
    client.loop_stop()


def _insert_history(connection: Connection, now: int) -> None:
    """Insert daily backups, and sizes of earlier days with which the database grows by a terabyte a day."""
    backups = [(now - days * DAY_MS, now - days * DAY_MS, 0, True) for days in range(5)]
    insert_rows(connection, backup, backups)
    for days in (3, 2, 1):
        sizes = {**dict.fromkeys(StoragePart, 0), StoragePart.DATABASE: -days * 10**12}
        save_sizes(connection, sizes, now=now - days * DAY_MS)


def _wait_for_series(prometheus: Prometheus, query: PanelQuery) -> None:
    expression = query.text.replace("$__rate_interval", "1m").replace("$job", "meshfleet")
    expression = expression.replace("$gateway", ".*")
    eventually(lambda: prometheus.query(expression), f"a series of {query.dashboard}, {query.panel}")
