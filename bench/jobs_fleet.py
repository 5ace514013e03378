"""The fleet of `bench.jobs`: devices of one model with labels, an image for them, and their service."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import insert
from tests.servers import postgresql

from bench.api_client import Client
from bench.broker_clients import gateway_mac
from bench.ingest_reports import device_mac
from bench.ingest_service import Service, create_database, run_service
from bench.ingest_verification import ADMIN_PASSWORD
from bench.jobs_gateways import GatewayStats
from bench.process_meter import wait_for
from meshfleet.db import open_database
from meshfleet.db.tables import firmware
from meshfleet.db.tables import gateway as claims
from meshfleet.protocol.ids import Mac, ModelNumber, Version, mac_to_int
from meshfleet.service import clock
from meshfleet.service.accounts.api_key_store import hash_credential
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from meshfleet.db import Database

GATEWAYS: Final = 50
REPORTING: Final = 20
"""Devices of each gateway that report. They are no part of any job: one that is heard is connected."""
RATE: Final = 200
"""Reports in a second, of all together, unless others are wanted."""

ALL, SOME = "all", "some"
"""Labels."""

FIRMWARE: Final = "fw-0123456789abcdef"
_JOBS: Final = "/api/v1/jobs"

_MODEL: Final = ModelNumber("0018")
_DISK: Final = "/var/tmp"  # noqa: S108 # on the disk; folders in it get names of their own
_CHUNK: Final = 5_000
_PATIENCE: Final = 120.0


class FleetSize(NamedTuple):
    """How large a fleet is."""

    devices: int
    some: int = 0
    """Those of them that have the label of some."""
    image: int = 200_000
    """Bytes of the image."""
    connected: bool = True


@contextmanager
def run_postgresql() -> Iterator[str]:
    """A PostgreSQL server that means it: tests run it without fsync."""
    with postgresql("fsync=on") as address:
        yield f"postgresql://postgres@{address.host}:{address.port}/postgres"


@contextmanager
def run_fleet(size: FleetSize, on: str | None = None) -> Iterator[Service]:
    """Run the service on a database with a fleet: of SQLite, or of a PostgreSQL server."""
    with TemporaryDirectory(prefix="meshfleet-bench-", dir=_DISK) as folder:
        database = "sqlite" if on is None else create_database(on)
        _fill(database, Path(folder), size)
        # The last of two flags counts: the service runs on what was filled here.
        with run_service(1, on, flags=("--data", folder, "--database", database)) as ours:
            yield ours


def _fill(database: str, folder: Path, size: FleetSize) -> None:
    opened = open_database(database, folder)
    try:
        opened.write_now(_add_gateways)
        opened.write_now(_add_firmware, size.image)
        _add_devices(opened, size)
    finally:
        opened.close()


def _add_gateways(connection: Connection) -> None:
    now, macs = clock.now(), [Mac(gateway_mac(number)) for number in range(GATEWAYS)]
    registry.record_observations(
        connection, [DeviceObservation(device=mac, at=now, heard=False) for mac in macs]
    )
    rows = [
        {"device": mac_to_int(mac), "password": hash_credential(f"secret-{mac}"), "claimed_at": now}
        for mac in macs
    ]
    connection.execute(insert(claims), rows)


def _add_firmware(connection: Connection, size: int) -> None:
    """A record alone: these gateways never ask for the image."""
    now = clock.now()
    connection.execute(
        insert(firmware).values(
            id=FIRMWARE,
            model=int(_MODEL, 16),
            version="3.0.0",
            type=1,
            file_name="image.zip",
            size=size,
            sha256=bytes(32),
            hardware="[]",
            notes="",
            state="released",
            created_by="the benchmark",
            created_at=now,
            released_at=now,
        )
    )


def _add_devices(database: Database, size: FleetSize) -> None:
    for start in range(0, size.devices, _CHUNK):
        numbers = range(start, min(start + _CHUNK, size.devices))
        database.write_now(registry.record_observations, [_sighting(number, size) for number in numbers])
        pairs = [(ALL, _mac(number)) for number in numbers]
        pairs += [(SOME, _mac(number)) for number in numbers if number < size.some]
        database.write_now(registry.attach_labels, pairs, at=clock.now())


def _sighting(number: int, size: FleetSize) -> DeviceObservation:
    return DeviceObservation(
        device=_mac(number),
        at=clock.now(),
        gateway=Mac(gateway_mac(number % GATEWAYS)),
        model=_MODEL,
        firmware=Version(2, 4, 1),
        hardware=Version(1, 2, 0),
        connected=size.connected,
        status=0,
    )


def _mac(number: int) -> Mac:
    """Devices are dealt out to the gateways one by one, behind those that report."""
    return Mac(device_mac(number % GATEWAYS, REPORTING + number // GATEWAYS))


class GatewayProcess:
    """The gateways of a fleet, which report all the time."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self._program = program

    def reset(self) -> None:
        """Count anew."""
        self._send_command("begin")

    def read_stats(self) -> GatewayStats:
        """What came since the beginning."""
        return msgspec.json.decode(self._send_command("look"), type=GatewayStats)

    def _send_command(self, word: str) -> str:
        if self._program.stdin:
            self._program.stdin.write(f"{word}\n")
            self._program.stdin.flush()
        line = self._program.stdout.readline() if self._program.stdout else ""
        if not line:
            raise RuntimeError("the gateways have ended too early")
        return line


@contextmanager
def run_gateways(ours: Service, *, rate: int = RATE) -> Iterator[GatewayProcess]:
    """Connect all gateways, and wait until the service knows it."""
    numbers = (ours.port, GATEWAYS, REPORTING, rate)
    command = [sys.executable, "-m", "bench.jobs_gateways", *map(str, numbers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:  # noqa: S603 # our own
        try:
            if program.stdout is None or program.stdout.readline() != "ready\n":
                raise RuntimeError("the gateways did not come in")
            operator = JobClient(ours)
            wait_for(lambda: operator.count_connected_gateways() == GATEWAYS, timeout=_PATIENCE)
            yield GatewayProcess(program)
        finally:
            program.kill()


class JobClient:
    """Somebody who makes jobs. Each deed has a connection of its own: they are far apart."""

    def __init__(self, ours: Service) -> None:
        self._url = ours.url
        with Client(ours.url) as client:
            login = {"username": "admin", "password": ADMIN_PASSWORD}
            self._token: str = client.post("/api/v1/auth/login", login)["authToken"]

    def create_job(self, label: str, **order: Any) -> str:
        """Make a job without limits, unless the order says otherwise, for all that have a label."""
        body = {
            "name": "The benchmark",
            "firmwareId": FIRMWARE,
            "targets": {"labels": [label]},
            "concurrency": {"perGateway": None},
            **order,
        }
        with self._client() as client:
            return str(client.post(_JOBS, body, status=201)["id"])

    def send_command(self, deed: str, job: str) -> None:
        """Apply, pause or cancel a job."""
        with self._client() as client:
            client.post(f"{_JOBS}/{job}/{deed}", {})

    def get_job(self, job: str) -> dict[str, Any]:
        """A job, and how it goes."""
        with self._client() as client:
            shown: dict[str, Any] = json.loads(client.get(f"{_JOBS}/{job}"))
        return shown

    def count_connected_gateways(self) -> int:
        """How many gateways are there."""
        with self._client() as client:
            items = json.loads(client.get("/api/v1/gateways?MaxResults=1000"))["items"]
        return sum(each["connected"] for each in items)

    def _client(self) -> Client:
        client = Client(self._url)
        client.set_token(self._token)
        return client
