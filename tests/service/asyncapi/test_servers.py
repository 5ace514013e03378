"""Servers in the AsyncAPI document of an installation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.client.address import BrokerAddress
from meshfleet.rest.gateways import BrokerEndpoint
from meshfleet.service.asyncapi import build_asyncapi_document, list_servers
from meshfleet.settings import ListenAddress, Settings
from tests.service.http.running_service import run_service

if TYPE_CHECKING:
    from meshfleet.db import Database


def _list_documented_servers(settings: Settings) -> dict[str, tuple[str, str]]:
    servers = build_asyncapi_document(list_servers(settings))["servers"]
    return {name: (server["protocol"], server["host"]) for name, server in servers.items()}


def test_the_listeners_of_the_embedded_broker_are_listed() -> None:
    settings = Settings(
        mqtt=ListenAddress("10.0.0.1", 1884),
        mqtt_tls=ListenAddress("::1", 8883),
        mqtt_ws=ListenAddress("fleet.example.org", 8884),
        tls_cert=Path("cert.pem"),
    )
    assert _list_documented_servers(settings) == {
        "mqtt": ("mqtt", "10.0.0.1:1884"),
        "mqtt-tls": ("secure-mqtt", "[::1]:8883"),
        "mqtt-ws": ("wss", "fleet.example.org:8884"),
    }
    assert _list_documented_servers(Settings(mqtt_ws=ListenAddress("h", 1)))["mqtt-ws"] == ("ws", "h:1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104 # not bound to
def test_a_wildcard_listener_is_listed_with_a_reachable_host(host: str) -> None:
    settings = Settings(mqtt=ListenAddress(host, 1883))
    assert _list_documented_servers(settings) == {"mqtt": ("mqtt", "localhost:1883")}
    assert list_servers(settings, "10.0.0.1")[0].host == "10.0.0.1:1883"
    assert list_servers(settings, "::1")[0].host == "[::1]:1883"


@pytest.mark.rule("rest-168")
def test_the_public_address_replaces_all_listeners() -> None:
    public_address = BrokerEndpoint(host="fleet.example.org", port=8883, tls=True)
    settings = Settings(mqtt_tls=ListenAddress("127.0.0.1", 1), public_mqtt=public_address)
    assert _list_documented_servers(settings) == {"mqtt": ("secure-mqtt", "fleet.example.org:8883")}


def test_an_external_broker_is_listed_without_credentials() -> None:
    broker = BrokerAddress.parse("mqtts://broker-user:sesame@broker.example.org:8884")
    document = build_asyncapi_document(list_servers(Settings(mqtt=None, external_broker=broker)))
    assert document["servers"]["mqtt"]["host"] == "broker.example.org:8884"
    assert "sesame" not in json.dumps(document)
    assert "broker-user" not in json.dumps(document)


def test_there_is_no_server_without_a_listener() -> None:
    assert list_servers(Settings(mqtt=None)) == ()


def test_every_server_requires_name_and_password() -> None:
    document = build_asyncapi_document()
    (scheme,) = document["components"]["securitySchemes"]
    assert document["components"]["securitySchemes"][scheme]["type"] == "userPassword"
    for server in document["servers"].values():
        assert server["security"] == [{"$ref": f"#/components/securitySchemes/{scheme}"}]
        assert server["protocolVersion"] == "3.1.1"


@pytest.mark.rule("rest-162", "topic-7")
def test_the_document_of_an_installation_is_public(sqlite_database: Database) -> None:
    settings = Settings(mqtt=ListenAddress("0.0.0.0", 1999), topic_prefix="site/7")  # noqa: S104 # not bound to
    with run_service(sqlite_database, settings) as service:
        response = service.anonymous.get("/api/v1/asyncapi.json")
    sqlite_database.close()
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/json")
    document = response.json()
    assert document == build_asyncapi_document(list_servers(settings, "127.0.0.1"), "site/7")
    assert document["servers"]["mqtt"]["host"] == "127.0.0.1:1999"
    assert document["channels"]["report-rssi"]["address"] == (
        "site/7/mt/gateway/{gateway}/device/{device}/rssi"
    )
