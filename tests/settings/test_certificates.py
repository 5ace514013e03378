"""Settings of certificates and their keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization

from meshfleet.errors import Fault
from meshfleet.settings import ListenAddress
from tests.row_tables import each_row
from tests.settings.from_flags import faults, settings

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.mark.rule("rest-172")
def test_a_certificate_and_its_key_are_accepted(pem: Mapping[str, str]) -> None:
    found = settings(tls_cert=pem["cert"], tls_key=pem["key"])
    assert (found.tls_cert, found.tls_key) == (Path(pem["cert"]), Path(pem["key"]))


def test_a_certificate_needs_its_key_and_a_key_its_certificate(pem: Mapping[str, str]) -> None:
    assert faults(tls_cert=pem["cert"]) == [Fault("--tls-cert", "also needs tls-key")]
    assert faults({"MESHFLEET_TLS_KEY": pem["key"]}) == [Fault("MESHFLEET_TLS_KEY", "also needs tls-cert")]


@pytest.mark.rule("rest-172")
def test_mqtt_over_tls_uses_the_certificate(pem: Mapping[str, str]) -> None:
    found = settings(mqtt_tls="192.0.2.1:8883", tls_cert=pem["cert"], tls_key=pem["key"])
    assert (found.mqtt_tls, found.tls_cert) == (ListenAddress("192.0.2.1", 8883), Path(pem["cert"]))


@each_row("text", ["a:1", "a"])
def test_mqtt_over_tls_needs_a_certificate_and_its_key(text: str, pem: Mapping[str, str]) -> None:
    needs = Fault("--mqtt-tls", "needs tls-cert and tls-key")
    assert needs in faults(mqtt_tls=text)
    assert {needs, Fault("--tls-cert", "also needs tls-key")} <= set(
        faults(mqtt_tls=text, tls_cert=pem["cert"])
    )
    assert needs not in faults(mqtt_tls=text, tls_cert="missing", tls_key="missing")


def test_mqtt_that_is_off_or_over_plain_websocket_needs_no_certificate() -> None:
    found = settings(mqtt_tls="off", mqtt_ws="a:1")
    assert (found.mqtt_tls, found.mqtt_ws) == (None, ListenAddress("a", 1))


def test_the_key_of_another_certificate_is_refused(pem: Mapping[str, str]) -> None:
    ((field, message),) = faults(tls_cert=pem["cert"], tls_key=pem["other"])
    assert field == "--tls-cert"
    assert "MISMATCH" in message


def test_a_key_with_a_password_is_refused_without_a_prompt(pem: Mapping[str, str], folder: Path) -> None:
    key = serialization.load_pem_private_key(Path(pem["key"]).read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"hush")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    encrypted = folder / "encrypted.pem"
    encrypted.write_bytes(key.private_bytes(*form, encryption))
    ((field, message),) = faults(tls_cert=pem["cert"], tls_key=str(encrypted))
    assert field == "--tls-key"
    assert "has a password" in message


def test_files_without_a_certificate_are_refused(folder: Path) -> None:
    (folder / "empty").touch()
    assert [fault.field for fault in faults(tls_cert="empty", tls_key="empty")] == ["--tls-cert"]


@each_row("text", ["missing.pem", "."])
def test_an_unreadable_file_is_reported_with_its_setting(text: str) -> None:
    assert [fault.field for fault in faults(tls_cert=text, tls_key=text)] == ["--tls-cert", "--tls-key"]


def test_certificate_authorities_can_be_given_for_influxdb_with_tls(
    folder: Path, pem: Mapping[str, str]
) -> None:
    (folder / "empty").touch()
    url = "https://host:8086"
    assert settings(influx_url=url, influx_ca=pem["cert"]).influx.ca == Path(pem["cert"])
    assert faults(influx_ca=pem["cert"]) == faults(influx_url="http://host", influx_ca=pem["cert"])
    assert faults(influx_ca=pem["cert"]) == [("--influx-ca", "is only for an influx.url with https://")]
    assert [field for field, _ in faults(influx_url="x", influx_ca=pem["cert"])] == ["--influx-url"]
    for file in ("empty", pem["key"], "missing"):
        assert [field for field, _ in faults(influx_url=url, influx_ca=file)] == ["--influx-ca"]
