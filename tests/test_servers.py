"""Servers and browser that the tests need, checked on this machine before others rely on them."""

from __future__ import annotations

import socket
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.external_tools import CHROMIUM, POSTGRESQL, require
from tests.servers import Mosquitto, ServerAddress, postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServerAddress]:
    with Mosquitto(tmp_path) as broker:
        yield broker.address


@pytest.fixture
def database() -> Iterator[ServerAddress]:
    with postgresql() as address:
        yield address


def test_mosquitto_accepts_an_mqtt_connection(broker: ServerAddress) -> None:
    connect = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x0a\x00\x01x"
    with closing(socket.create_connection(broker, timeout=10)) as client:
        client.sendall(connect)
        assert client.recv(4) == b"\x20\x02\x00\x00"


def test_postgresql_15_or_newer_responds_to_a_query(database: ServerAddress) -> None:
    psql = str(require(POSTGRESQL).resolve().with_name("psql"))
    address = ["-h", database.host, "-p", str(database.port), "-U", "postgres"]
    command = [psql, *address, "-Atc", "show server_version_num"]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(result.stdout) >= 150000


def test_chromium_renders_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<p id=here></p><script>here.textContent = 6 * 7</script>")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ]
    flags += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    result = subprocess.run(
        [require(CHROMIUM), *flags, "--dump-dom", page.as_uri()], check=True, capture_output=True, text=True
    )
    assert '<p id="here">42</p>' in result.stdout
