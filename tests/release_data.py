"""Data of a release, which all later versions must be able to upgrade: `make release-data` writes it.

`tests/releases/VERSION` has a data directory (`sqlite.tar.xz`), a backup of PostgreSQL (`postgresql.tar.xz`)
and for both what REST returned (`sqlite.json`, `postgresql.json`). The data is that of the demo fleet, and of
everything that the demo lacks. Answers contain only what does not depend on the time.
"""

from __future__ import annotations

import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import time
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from io import BytesIO
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from paho.mqtt import publish

from meshfleet.client import NewFloor, NewSurveyReading, NewSurveyRecord, ReferencePoint
from meshfleet.client.blocking import Fleet
from meshfleet.protocol.firmware_image import build_package
from meshfleet.protocol.ids import ModelNumber, Version
from meshfleet.rest.accounts import Role
from meshfleet.settings import SETTINGS
from tests.cli.programs import MESHFLEET
from tests.databases import create_empty_database
from tests.eventually import eventually
from tests.scenarios.service_process import PASSWORD, ServiceProcess
from tests.servers import postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = Path(__file__).parent / "releases"
DATABASES: Final = ("sqlite", "postgresql")
SHOWN_DEVICES: Final = ("ca5bda1a0002", "ca5bda1a0004", "ca5bda1a0006", "02005e000001", "02005e0000f1")

_GATEWAY: Final = "02005e0000f0"
_DEVICE: Final = "02005e0000f1"
_FOREVER: Final = [
    argument
    for each in SETTINGS
    if each.name.startswith("retention.") and each.name != "retention.readings"
    for argument in (each.flag, "forever")
]
"""Flags with which nothing expires, however old the data is."""

_VARIABLE: Final = {"clockOffset", "connected", "connectivity", "eta", "lastLoginAt", "live", "nextToken"}
"""Fields that depend on the time at which they are read."""

_REPORTS: Final[dict[str, dict[str, Any]]] = {
    "property/8000": {"value": "03010000"},
    "measurement/8800": {"seq": 7, "value": "1234"},
    "measurement-decoded/humidity": {"seq": 8, "value": 41.5},
    "measurement-error/8801": {"seq": 9, "error": 3, "errorExt": 1},
    "event/9800": {"seq": 10, "value": "01"},
    "heartbeat": {"seq": 11, "status": 0},
    "rssi": {"parent": _GATEWAY, "rssi": -61, "channel": 37},
    "measurement/8802": {"seq": 999, "value": "00"},
}
"""Reports of every kind. The last one is rejected."""


_PLAN: Final = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 240"/>'


@contextmanager
def run_release(
    folder: Path, database: str, server: str | None, source: Path | None, *options: str
) -> Iterator[ServiceProcess]:
    """Run the current service, on the data of a release if there is a source, without MQTT clients."""
    arguments = [*_FOREVER, *options]
    if server is not None:
        arguments += ["--database", create_empty_database(server, f"release_{next(_numbers)}")]
    if source is not None:
        _unpack(source, folder, arguments[-1] if database == "postgresql" else None)
    with ServiceProcess(folder, *arguments) as service:
        eventually(service.is_ready, "a service that is ready")
        yield service


_numbers = count()


def _unpack(source: Path, folder: Path, database: str | None) -> None:
    """Unpack a data directory, or restore a backup to an empty database."""
    folder.mkdir(exist_ok=True)
    if database is None:
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        return
    backup = folder / "backup.tar"
    with lzma.open(source) as packed, backup.open("wb") as file:
        shutil.copyfileobj(packed, file)
    _run("restore", str(backup), "--data", str(folder / "data"), "--database", database)


def load_answers(service: ServiceProcess, paths: list[str]) -> dict[str, Any]:
    """Read REST resources. Leave out what depends on the time."""
    return {path: _drop_variable(service.call("GET", path)) for path in paths}


def find_differences(expected: Any, found: Any, place: str = "") -> list[str]:
    """Return the places at which an expected value is missing or different.

    Objects may have more fields than expected, because later versions add some. Lists must have exactly the
    expected items, so that an upgrade that stores a sample or a job twice is found.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        return [
            difference
            for name, value in expected.items()
            for difference in (
                find_differences(value, found[name], f"{place}.{name}")
                if name in found
                else [f"{place}.{name}"]
            )
        ]
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return [f"{place}: {len(found)} items, not {len(expected)}"]
        return [
            difference
            for number, (value, item) in enumerate(zip(expected, found, strict=True))
            for difference in find_differences(value, item, f"{place}[{number}]")
        ]
    return [] if expected == found else [f"{place}: {found!r}, not {expected!r}"]


def main() -> None:
    """Write the data of the current version. Replace what is there."""
    target = FOLDER / version("meshfleet")
    with TemporaryDirectory(prefix="meshfleet-release-") as temporary, ExitStack() as stack:
        host, port = stack.enter_context(postgresql())
        new = Path(temporary) / "new"
        new.mkdir()
        for database in DATABASES:
            server = f"postgresql://postgres@{host}:{port}" if database == "postgresql" else None
            answers = _write_data(Path(temporary), database, server, new / f"{database}.tar.xz")
            (new / f"{database}.json").write_text(json.dumps(answers, indent=1, ensure_ascii=False))
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(new, target)
    for path in sorted(target.iterdir()):
        print(f"{path.relative_to(FOLDER.parent.parent)}: {path.stat().st_size:,} bytes")  # noqa: T201 # a program


def _write_data(folder: Path, database: str, server: str | None, target: Path) -> dict[str, Any]:
    """Write the data of a new service to a file. Return what REST returns for it."""
    first = folder / database
    with run_release(first, database, server, None, "--demo", "--mqtt", "127.0.0.1:0") as service:
        _use_everything(service)
        paths = _list_paths(service)
        if server is None:
            service.stop()
            with tarfile.open(target, "w:xz") as archive:
                archive.add(service.data, "data", filter=lambda each: None if "demo" in each.name else each)
        else:
            backup = folder / "backup.tar"
            _run("backup", str(backup), "--data", str(service.data), "--database", f"{server}/release_0")
            service.stop()
            target.write_bytes(lzma.compress(backup.read_bytes()))
    found: list[dict[str, Any]] = []
    for number in range(2):  # what differs between two starts depends on the time
        with run_release(
            folder / f"{database}-{number}", database, server, target, "--mqtt", "off"
        ) as service:
            found.append(load_answers(service, paths))
        time.sleep(1)
    if differences := find_differences(found[0], found[1]):
        sys.exit("two starts of the same version differ: " + "; ".join(differences))
    return found[0]


def _use_everything(service: ServiceProcess) -> None:
    """Make changes of every kind, and publish reports of every kind."""
    device = f"/api/v1/devices/bmac-{SHOWN_DEVICES[1]}"
    eventually(lambda: service.call("GET", device)["connectivity"]["connected"], "a connected device")
    service.call("PUT", f"{device}/friendly-name", {"name": "Cold room ☕"})
    service.call("PUT", f"{device}/labels/2nd%20floor%2Fnorth")
    service.add_user("ada", Role.OPERATOR)
    service.call("POST", "/api/v1/api-keys", {"name": "nightly", "role": "viewer"})
    service.call("POST", f"{device}/requests", {"operation": "read-decoded", "identifier": "battery-level"})
    service.call(
        "POST", f"{device}/requests", {"operation": "write-decoded", "identifier": "tx-power", "value": -4}
    )
    _publish_reports(service)
    _create_jobs(service)
    _create_site(service)


def _publish_reports(service: ServiceProcess) -> None:
    account = service.claim(_GATEWAY)
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    host, port = service.mqtt["mqtt"]
    publish.multiple(
        [
            (f"mt/gateway/{_GATEWAY}/device/{_DEVICE}/{kind}", json.dumps({"time": now, **body}), 1, False)
            for kind, body in _REPORTS.items()
        ],
        hostname=host,
        port=port,
        client_id=_GATEWAY,
        auth={"username": account.user, "password": account.password},
    )


def _create_jobs(service: ServiceProcess) -> None:
    """Create jobs that stay as they are: one waits for its start, one was canceled, one has ended."""
    package = build_package(bytes(2_000), model_number=ModelNumber("0018"), version=Version.parse("9.9.9"))
    firmware = service.upload("0018", "9.9.9", package)
    service.call("POST", f"/api/v1/firmware/{firmware}/release")
    found = service.call("GET", "/api/v1/devices?ModelNumber=0018&Connected=true&MaxResults=3")["items"]
    changes: tuple[dict[str, Any], ...] = (
        {"name": "Waits", "autoApply": False},
        {"name": "Canceled", "autoApply": False},
        {"name": "Ended", "health": {"heartbeats": 0}},
    )
    jobs = [
        service.call(
            "POST",
            "/api/v1/jobs",
            {"firmwareId": firmware, "targets": {"deviceIds": [device["id"]]}, **options},
        )["id"]
        for options, device in zip(changes, found, strict=True)
    ]
    service.call("POST", f"/api/v1/jobs/{jobs[1]}/cancel")
    for job in jobs[1:]:
        eventually(partial(_has_ended, service, job), f"the end of job {job}")


def _create_site(service: ServiceProcess) -> None:
    """Create a site with everything that one can have."""
    room = ((0.0, 0.0), (20.0, 0.0), (20.0, 12.0), (0.0, 12.0))
    floor = NewFloor(floor=-1, name="Cellar", min_x=0, min_y=0, max_x=20, max_y=12, walkable=(room,))
    corners = [ReferencePoint(px=0, py=0, x=0, y=12), ReferencePoint(px=400, py=0, x=20, y=12)]
    with Fleet(service.url, user="admin", password=PASSWORD) as fleet:
        site = fleet.sites.create("Werk Süd", [floor])
        fleet.sites.upload_plan(site, -1, BytesIO(_PLAN), corners)
        for number, device in enumerate(SHOWN_DEVICES):
            fleet.devices.set_place(device, site, -1, 2.5 + number, 3)
        fleet.sites.create_zone(site, "Loading bay", -1, room[:3])
        readings = tuple(NewSurveyReading(anchor=mac, rssi=-61.25, count=12) for mac in SHOWN_DEVICES[:3])
        point = NewSurveyRecord(
            device=SHOWN_DEVICES[2],
            floor=-1,
            x=4.5,
            y=6,
            since="2026-11-15T10:00:00.000Z",
            until="2026-11-15T10:01:00.000Z",
            readings=readings,
        )
        fleet.sites.import_survey(site, [point])


def _has_ended(service: ServiceProcess, job: str) -> bool:
    return str(service.call("GET", f"/api/v1/jobs/{job}")["state"]) in {"COMPLETED", "CANCELED"}


def _list_paths(service: ServiceProcess) -> list[str]:
    """List the paths whose answers are compared. Time ranges are absolute."""
    jobs = [each["id"] for each in service.call("GET", "/api/v1/jobs")["items"]]
    sites = [each["id"] for each in service.call("GET", "/api/v1/sites")["items"]]
    end = datetime.now(UTC).replace(microsecond=0)
    times = f"From={end - timedelta(days=1):%FT%TZ}&To={end:%FT%TZ}"
    pages = ("labels", "gateways", "users", "api-keys", "firmware", "jobs", "rejects", "devices", "sites")
    return [
        *(f"/api/v1/{page}?MaxResults=1000" for page in pages),
        f"/api/v1/audit?{times}&MaxResults=1000",  # without the logins of those who read it
        *(f"/api/v1/jobs/{job}" for job in jobs),
        *(f"/api/v1/jobs/{job}/executions" for job in jobs),
        *(
            f"/api/v1/sites/{site}{path}"
            for site in sites
            for path in ("", "/places", "/zones", "/survey", "/survey/export", "/floors/-1/plan")
        ),
        *(
            f"/api/v1/devices/bmac-{device}{path}"
            for device in SHOWN_DEVICES
            for path in (
                "",
                f"/samples?{times}&MaxResults=100",
                "/connectivity",
                "/requests",
                f"/links?{times}",
                f"/parents?{times}",
            )
        ),
        f"/api/v1/devices/bmac-{SHOWN_DEVICES[2]}/series?Identifier=temperature&{times}&Points=24",
    ]


def _drop_variable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _drop_variable(each) for name, each in value.items() if name not in _VARIABLE}
    return [_drop_variable(each) for each in value] if isinstance(value, list) else value


def _run(*arguments: str) -> None:
    """Run a command of the program, which must succeed."""
    result = subprocess.run([MESHFLEET, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


if __name__ == "__main__":
    main()
