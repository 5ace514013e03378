"""Firmware, devices that run it, and jobs; and what an engine would do to these."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from sqlalchemy import delete, func, insert, select, update

from meshfleet.db.tables import execution, firmware, job, job_draft, tally, transition
from meshfleet.protocol.ids import Mac, ModelNumber, Version, mac_to_int
from meshfleet.rest import Job

if TYPE_CHECKING:
    from collections.abc import Iterable

    import httpx
    from sqlalchemy import Connection

    from tests.service.http.running_service import RunningService

JOBS = "/api/v1/jobs"
MINUTE = 60_000

UNTOUCHED: dict[str, Any] = {"succeeded": 0, "failed": 0, "soaksUntil": None}
"""A wave in which nothing has happened yet."""

_models = count(0x7000)


def number_of(device: str) -> int:
    """The number of a device, by its id."""
    return mac_to_int(Mac(device.removeprefix("bmac-")))


def job_number(job_id: str) -> int:
    return int(job_id.removeprefix("job-"))


class JobEnvironment:
    """What a test of jobs works with: a model, and all that there is of it."""

    def __init__(self, service: RunningService) -> None:
        self.service = service
        self.model = ModelNumber(f"{next(_models):04X}")
        self._firmware: dict[str, str] = {}

    @property
    def now(self) -> int:
        return self.service.clock()

    def firmware(self, version: str = "3.4.2", **facts: Any) -> str:
        """Released firmware, unless the facts say otherwise; the same for the same version."""
        if version in self._firmware:
            return self._firmware[version]
        name = self._firmware[version] = f"fw-{uuid4().hex[:16]}"
        row = {
            "id": name,
            "model": int(self.model, 16),
            "version": version,
            "type": 1,
            "file_name": "image.zip",
            "size": 60_000,
            "sha256": bytes(32),
            "hardware": "[]",
            "min_version": None,
            "notes": "",
            "state": "released",
            "created_by": "somebody",
            "created_at": self.now,
            "released_at": self.now,
        }
        self.service.database.write_now(lambda c: c.execute(insert(firmware).values(row | facts)))
        return name

    def device(self, version: str | None = "3.4.1", **facts: Any) -> str:
        """A device of the model."""
        known = {} if version is None else {"firmware": Version.parse(version)}
        return self.service.new_device(**({"model": self.model} | known | facts))

    def devices(self, number: int, version: str | None = "3.4.1", **facts: Any) -> list[str]:
        return sorted(self.device(version, **facts) for _ in range(number))

    def label(self, devices: Iterable[str]) -> str:
        """A label that they have."""
        name = self.service.new_name("label")
        answer = self.service.operator.post(
            "/api/v1/labels", json={"label": name, "deviceIds": list(devices)}
        )
        assert answer.status_code == 200, answer.text
        return name

    def post_job(
        self, firmware_id: str, targets: dict[str, Any], key: str | None = None, **order: Any
    ) -> httpx.Response:
        """Ask for a job."""
        body = {"name": "A job", "firmwareId": firmware_id, "targets": targets} | order
        headers = {} if key is None else {"Idempotency-Key": key}
        return self.service.operator.post(JOBS, json=body, headers=headers)

    def create_job(self, firmware_id: str, devices: Iterable[str], **order: Any) -> dict[str, Any]:
        """Make a job for devices."""
        answer = self.post_job(firmware_id, {"deviceIds": list(devices)}, **order)
        assert answer.status_code == 201, answer.text
        msgspec.json.decode(answer.content, type=Job)
        made: dict[str, Any] = answer.json()
        return made

    def any_job(self) -> str:
        """The id of a job."""
        return str(self.create_job(self.firmware(), self.devices(2))["id"])

    def dry_run(self, firmware_id: str, targets: dict[str, Any], **order: Any) -> dict[str, Any]:
        answer = self.post_job(firmware_id, targets, dryRun=True, **order)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def run_command(self, command: str, job_id: str) -> httpx.Response:
        return self.service.operator.post(f"{JOBS}/{job_id}/{command}")

    def get_job(self, job_id: str) -> dict[str, Any]:
        answer = self.service.viewer.get(f"{JOBS}/{job_id}")
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    def executions(self, job_id: str, **query: Any) -> dict[str, dict[str, Any]]:
        """All of a job, by device."""
        answer = self.service.viewer.get(f"{JOBS}/{job_id}/executions", params={"MaxResults": 1000} | query)
        assert answer.status_code == 200, answer.text
        assert answer.json()["nextToken"] is None
        return {each["deviceId"]: each for each in answer.json()["items"]}

    def states(self, job_id: str) -> dict[str, str]:
        return {device: each["state"] for device, each in self.executions(job_id).items()}

    # What an engine would do

    def set_job(self, job_id: str, **values: Any) -> None:
        """Put a job where it could be."""
        query = update(job).where(job.c.id == job_number(job_id)).values(**values)
        self.service.database.write_now(lambda c: c.execute(query))

    def set_execution(self, job_id: str, device: str, **values: Any) -> None:
        """Put an execution where it could be, and count anew."""
        number = job_number(job_id)
        mine = (execution.c.job == number) & (execution.c.device == number_of(device))

        def write(connection: Connection) -> None:
            connection.execute(update(execution).where(mine).values(**values))
            recount_tallies(connection, number)

        self.service.database.write_now(write)

    def row(self, job_id: str) -> dict[str, Any]:
        """A job as it is stored."""
        query = select(job).where(job.c.id == job_number(job_id))
        return dict(self.service.database.read_now(lambda c: c.execute(query).mappings().one()))

    def rows(self, job_id: str) -> list[dict[str, Any]]:
        """Its executions as they are stored, by device."""
        query = select(execution).where(execution.c.job == job_number(job_id)).order_by(execution.c.device)
        return [
            dict(row) for row in self.service.database.read_now(lambda c: c.execute(query).mappings().all())
        ]

    def transitions(self, job_id: str, device: str | None = None) -> list[tuple[str | None, str, str]]:
        """What happened to a job, or to one of its devices: from, to, cause."""
        whose = transition.c.device.is_(None) if device is None else transition.c.device == number_of(device)
        query = (
            select(transition.c.before, transition.c.after, transition.c.cause)
            .where(transition.c.job == job_number(job_id), whose)
            .order_by(transition.c.id)
        )
        return [tuple(row) for row in self.service.database.read_now(lambda c: c.execute(query).all())]

    def count_rows(self) -> tuple[int, ...]:
        """How many rows there are of all that a job is made of."""
        tables = (job, job_draft, execution, tally, transition)
        return self.service.database.read_now(
            lambda c: tuple(c.execute(select(func.count()).select_from(each)).scalar_one() for each in tables)
        )

    def tallies(self, job_id: str) -> dict[tuple[int, str], int]:
        """The counts as they are stored, but for zeros."""
        number = job_number(job_id)
        columns = tally.c
        query = select(columns.wave, columns.state, columns["count"]).where(columns.job == number)
        rows = self.service.database.read_now(lambda c: c.execute(query).all())
        return {(wave, state): found for wave, state, found in rows if found}


def recount_tallies(connection: Connection, number: int) -> None:
    """Make the counts of a job what they are."""
    columns = execution.c
    query = (
        select(columns.wave, columns.state, func.count())
        .where(columns.job == number)
        .group_by(columns.wave, columns.state)
    )
    rows = connection.execute(query).all()
    connection.execute(delete(tally).where(tally.c.job == number))
    connection.execute(
        insert(tally),
        [{"job": number, "wave": wave, "state": state, "count": found} for wave, state, found in rows],
    )
