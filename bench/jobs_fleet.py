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
from bench.broker_clients import gateway
from bench.ingest_check import PASSWORD
from bench.ingest_meter import wait_for
from bench.ingest_ours import Service, fresh_database, service
from bench.ingest_reports import device
from bench.jobs_ends import Seen
from meshfleet.db import open_database
from meshfleet.db.tables import firmware
from meshfleet.db.tables import gateway as claims
from meshfleet.service import clock
from meshfleet.service.accounts.keys import digest
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import Sighting
from meshfleet.wire.ids import Mac, ModelNumber, Version, mac_number

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


class Size(NamedTuple):
    """How large a fleet is."""

    devices: int
    some: int = 0
    """Those of them that have the label of some."""
    image: int = 200_000
    """Bytes of the image."""
    connected: bool = True


@contextmanager
def server() -> Iterator[str]:
    """A PostgreSQL server that means it: tests run it without fsync."""
    with postgresql("fsync=on") as address:
        yield f"postgresql://postgres@{address.host}:{address.port}/postgres"


@contextmanager
def fleet(size: Size, on: str | None = None) -> Iterator[Service]:
    """Run the service on a database with a fleet: of SQLite, or of a PostgreSQL server."""
    with TemporaryDirectory(prefix="meshfleet-bench-", dir=_DISK) as folder:
        database = "sqlite" if on is None else fresh_database(on)
        _fill(database, Path(folder), size)
        # The last of two flags counts: the service runs on what was filled here.
        with service(1, on, more=("--data", folder, "--database", database)) as ours:
            yield ours


def _fill(database: str, folder: Path, size: Size) -> None:
    opened = open_database(database, folder)
    try:
        opened.write_now(_add_gateways)
        opened.write_now(_add_firmware, size.image)
        _add_devices(opened, size)
    finally:
        opened.close()


def _add_gateways(connection: Connection) -> None:
    now, macs = clock.now(), [Mac(gateway(number)) for number in range(GATEWAYS)]
    registry.observe(connection, [Sighting(device=mac, at=now, heard=False) for mac in macs])
    rows = [
        {"device": mac_number(mac), "password": digest(f"secret-{mac}"), "claimed_at": now} for mac in macs
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


def _add_devices(database: Database, size: Size) -> None:
    for start in range(0, size.devices, _CHUNK):
        numbers = range(start, min(start + _CHUNK, size.devices))
        database.write_now(registry.observe, [_sighting(number, size) for number in numbers])
        pairs = [(ALL, _mac(number)) for number in numbers]
        pairs += [(SOME, _mac(number)) for number in numbers if number < size.some]
        database.write_now(registry.attach, pairs, at=clock.now())


def _sighting(number: int, size: Size) -> Sighting:
    return Sighting(
        device=_mac(number),
        at=clock.now(),
        gateway=Mac(gateway(number % GATEWAYS)),
        model=_MODEL,
        firmware=Version(2, 4, 1),
        hardware=Version(1, 2, 0),
        connected=size.connected,
        status=0,
    )


def _mac(number: int) -> Mac:
    """Devices are dealt out to the gateways one by one, behind those that report."""
    return Mac(device(number % GATEWAYS, REPORTING + number // GATEWAYS))


class Gateways:
    """The gateways of a fleet, which report all the time."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self._program = program

    def begin(self) -> None:
        """Count anew."""
        self._tell("begin")

    def look(self) -> Seen:
        """What came since the beginning."""
        return msgspec.json.decode(self._tell("look"), type=Seen)

    def _tell(self, word: str) -> str:
        if self._program.stdin:
            self._program.stdin.write(f"{word}\n")
            self._program.stdin.flush()
        line = self._program.stdout.readline() if self._program.stdout else ""
        if not line:
            raise RuntimeError("the gateways have ended too early")
        return line


@contextmanager
def gateways(ours: Service, *, rate: int = RATE) -> Iterator[Gateways]:
    """Connect all gateways, and wait until the service knows it."""
    numbers = (ours.port, GATEWAYS, REPORTING, rate)
    command = [sys.executable, "-m", "bench.jobs_ends", *map(str, numbers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:  # noqa: S603 # our own
        try:
            if program.stdout is None or program.stdout.readline() != "ready\n":
                raise RuntimeError("the gateways did not come in")
            operator = Operator(ours)
            wait_for(lambda: operator.connected() == GATEWAYS, within=_PATIENCE)
            yield Gateways(program)
        finally:
            program.kill()


class Operator:
    """Somebody who makes jobs. Each deed has a connection of its own: they are far apart."""

    def __init__(self, ours: Service) -> None:
        self._url = ours.url
        with Client(ours.url) as client:
            login = {"username": "admin", "password": PASSWORD}
            self._token: str = client.post("/api/v1/auth/login", login)["authToken"]

    def make(self, label: str, **order: Any) -> str:
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

    def do(self, deed: str, job: str) -> None:
        """Apply, pause or cancel a job."""
        with self._client() as client:
            client.post(f"{_JOBS}/{job}/{deed}", {})

    def show(self, job: str) -> dict[str, Any]:
        """A job, and how it goes."""
        with self._client() as client:
            shown: dict[str, Any] = json.loads(client.get(f"{_JOBS}/{job}"))
        return shown

    def connected(self) -> int:
        """How many gateways are there."""
        with self._client() as client:
            items = json.loads(client.get("/api/v1/gateways?MaxResults=1000"))["items"]
        return sum(each["connected"] for each in items)

    def _client(self) -> Client:
        client = Client(self._url)
        client.come_with(self._token)
        return client
