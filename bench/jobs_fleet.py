"""Fleet of `bench.jobs`: devices of one model with labels, a firmware image, and the service."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import insert

from bench.api_client import Client
from bench.broker_clients import gateway_mac
from bench.ingest_reports import device_mac
from bench.ingest_service import Service, claim_gateways, create_database, run_service
from bench.ingest_verification import ADMIN_PASSWORD
from bench.jobs_gateways import GatewayStats
from bench.process_meter import wait_for
from bench.programs import run_module, send_command
from meshfleet.db import open_database
from meshfleet.db.tables import firmware
from meshfleet.protocol.ids import Mac, ModelNumber, Version
from meshfleet.service import clock
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from meshfleet.db import Database

GATEWAYS: Final = 50
REPORTING: Final = 20
"""Devices per gateway that report. They are in no job, because a report makes a device connected."""
RATE: Final = 200
"""Default of reports per second of all gateways together."""

ALL, SOME = "all", "some"
"""Labels of all devices, and of some of them."""

FIRMWARE: Final = "fw-0123456789abcdef"
_JOBS: Final = "/api/v1/jobs"

_MODEL: Final = ModelNumber("0018")
_DISK: Final = "/var/tmp"  # noqa: S108 # on the disk; directories in it get unique names
_CHUNK: Final = 5_000
_TIMEOUT: Final = 120.0


class FleetSize(NamedTuple):
    """Size of a fleet and of its firmware image."""

    devices: int
    some: int = 0
    """Number of devices with the label SOME."""
    image: int = 200_000
    """Bytes of the firmware image."""
    connected: bool = True


@contextmanager
def run_fleet(size: FleetSize, on: str | None = None) -> Iterator[Service]:
    """Run the service on a database with a fleet: SQLite, or a new database of a PostgreSQL server."""
    with TemporaryDirectory(prefix="meshfleet-bench-", dir=_DISK) as folder:
        database = "sqlite" if on is None else create_database(on)
        _fill(database, Path(folder), size)
        # The last of two equal flags wins: the service uses the database filled here.
        with run_service(1, on, flags=("--data", folder, "--database", database)) as ours:
            yield ours


def _fill(database: str, folder: Path, size: FleetSize) -> None:
    with closing(open_database(database, folder)) as opened:
        opened.write_now(claim_gateways, GATEWAYS)
        opened.write_now(_add_firmware, size.image)
        _add_devices(opened, size)


def _add_firmware(connection: Connection, size: int) -> None:
    """Insert a firmware record without an image: these gateways never download it."""
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
        database.write_now(registry.record_observations, [_observation(number, size) for number in numbers])
        pairs = [(ALL, _mac(number)) for number in numbers]
        pairs += [(SOME, _mac(number)) for number in numbers if number < size.some]
        database.write_now(registry.attach_labels, pairs, at=clock.now())


def _observation(number: int, size: FleetSize) -> DeviceObservation:
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
    """Return the MAC of a device; devices are assigned to gateways in turns, after those that report."""
    return Mac(device_mac(number % GATEWAYS, REPORTING + number // GATEWAYS))


class GatewayProcess:
    """Process of the gateways, which report all the time."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self._program = program

    def reset(self) -> None:
        """Reset the statistics."""
        send_command(self._program, "begin")

    def read_stats(self) -> GatewayStats:
        """Return the statistics since the last reset."""
        return msgspec.json.decode(send_command(self._program, "look"), type=GatewayStats)


@contextmanager
def run_gateways(ours: Service, *, rate: int = RATE) -> Iterator[GatewayProcess]:
    """Connect all gateways, and wait until the service shows them as connected."""
    with run_module("bench.jobs_gateways", ours.port, GATEWAYS, REPORTING, rate) as program:
        operator = JobClient(ours)
        wait_for(lambda: operator.count_connected_gateways() == GATEWAYS, timeout=_TIMEOUT)
        yield GatewayProcess(program)


class JobClient:
    """REST client for jobs. It opens a connection for each call, because calls are far apart."""

    def __init__(self, ours: Service) -> None:
        self._url = ours.url
        with Client(ours.url) as client:
            self._token = client.log_in(ADMIN_PASSWORD)

    def create_job(self, label: str, **order: Any) -> str:
        """Create a job for all devices with a label. It has no limits unless given in `order`."""
        body = {
            "name": "The benchmark",
            "firmwareId": FIRMWARE,
            "targets": {"labels": [label]},
            "concurrency": {"perGateway": None},
            **order,
        }
        with self._client() as client:
            return str(client.post(_JOBS, body, status=201)["id"])

    def send_command(self, command: str, job: str) -> None:
        """Apply, pause or cancel a job."""
        with self._client() as client:
            client.post(f"{_JOBS}/{job}/{command}", {})

    def get_job(self, job: str) -> dict[str, Any]:
        """Return a job with its state and counts."""
        with self._client() as client:
            body: dict[str, Any] = json.loads(client.get(f"{_JOBS}/{job}"))
        return body

    def count_connected_gateways(self) -> int:
        """Return the number of connected gateways."""
        with self._client() as client:
            items = json.loads(client.get("/api/v1/gateways?MaxResults=1000"))["items"]
        return sum(each["connected"] for each in items)

    def _client(self) -> Client:
        client = Client(self._url)
        client.set_token(self._token)
        return client
