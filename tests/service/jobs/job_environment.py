"""Environment of job tests: firmware, devices and jobs, and changes that the job runner would make."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from sqlalchemy import delete, func, insert, select, update

from meshfleet.db.tables import execution, firmware, job, job_draft, tally, transition
from meshfleet.protocol.ids import Mac, ModelNumber, Version, mac_to_int
from meshfleet.rest.jobs import Job

if TYPE_CHECKING:
    from collections.abc import Iterable

    import httpx
    from sqlalchemy import Connection

    from tests.service.http.running_service import RunningService

JOBS = "/api/v1/jobs"
MINUTE = 60_000

UNTOUCHED: dict[str, Any] = {"succeeded": 0, "failed": 0, "soaksUntil": None}
"""Fields of a wave in which nothing has happened yet."""

_models = count(0x7000)


def number_of(device: str) -> int:
    """Return the number of a device id."""
    return mac_to_int(Mac(device.removeprefix("bmac-")))


def job_number(job_id: str) -> int:
    return int(job_id.removeprefix("job-"))


class JobEnvironment:
    """Firmware, devices and jobs of one model that no other test uses."""

    def __init__(self, service: RunningService) -> None:
        self.service = service
        self.model = ModelNumber(f"{next(_models):04X}")
        self._firmware: dict[str, str] = {}

    @property
    def now(self) -> int:
        return self.service.clock()

    def firmware(self, version: str = "3.4.2", **facts: Any) -> str:
        """Return the id of released firmware; the same for the same version. `facts` override columns."""
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
            "created_by": "admin",
            "created_at": self.now,
            "released_at": self.now,
        }
        self.service.database.write_now(lambda c: c.execute(insert(firmware).values(row | facts)))
        return name

    def device(self, version: str | None = "3.4.1", **facts: Any) -> str:
        """Add a device of the model and return its id."""
        firmware_fact = {} if version is None else {"firmware": Version.parse(version)}
        return self.service.new_device(**({"model": self.model} | firmware_fact | facts))

    def devices(self, number: int, version: str | None = "3.4.1", **facts: Any) -> list[str]:
        return sorted(self.device(version, **facts) for _ in range(number))

    def label(self, devices: Iterable[str]) -> str:
        """Add a label to devices and return it."""
        name = self.service.new_name("label")
        response = self.service.operator.post(
            "/api/v1/labels", json={"label": name, "deviceIds": list(devices)}
        )
        assert response.status_code == 200, response.text
        return name

    def post_job(
        self, firmware_id: str, targets: dict[str, Any], key: str | None = None, **fields: Any
    ) -> httpx.Response:
        """Post a job and return the response."""
        body = {"name": "A job", "firmwareId": firmware_id, "targets": targets} | fields
        headers = {} if key is None else {"Idempotency-Key": key}
        return self.service.operator.post(JOBS, json=body, headers=headers)

    def create_job(self, firmware_id: str, devices: Iterable[str], **fields: Any) -> dict[str, Any]:
        """Create a job for devices and return it."""
        response = self.post_job(firmware_id, {"deviceIds": list(devices)}, **fields)
        assert response.status_code == 201, response.text
        msgspec.json.decode(response.content, type=Job)
        job_body: dict[str, Any] = response.json()
        return job_body

    def any_job(self) -> str:
        """Create a job and return its id."""
        return str(self.create_job(self.firmware(), self.devices(2))["id"])

    def dry_run(self, firmware_id: str, targets: dict[str, Any], **fields: Any) -> dict[str, Any]:
        response = self.post_job(firmware_id, targets, dryRun=True, **fields)
        assert response.status_code == 200, response.text
        result: dict[str, Any] = response.json()
        return result

    def run_command(self, command: str, job_id: str) -> httpx.Response:
        return self.service.operator.post(f"{JOBS}/{job_id}/{command}")

    def get_job(self, job_id: str) -> dict[str, Any]:
        response = self.service.viewer.get(f"{JOBS}/{job_id}")
        assert response.status_code == 200, response.text
        job_body: dict[str, Any] = response.json()
        return job_body

    def executions(self, job_id: str, **query: Any) -> dict[str, dict[str, Any]]:
        """Return all executions of a job by device."""
        response = self.service.viewer.get(f"{JOBS}/{job_id}/executions", params={"MaxResults": 1000} | query)
        assert response.status_code == 200, response.text
        assert response.json()["nextToken"] is None
        return {each["deviceId"]: each for each in response.json()["items"]}

    def states(self, job_id: str) -> dict[str, str]:
        return {device: each["state"] for device, each in self.executions(job_id).items()}

    # Changes that the job runner would make

    def set_job(self, job_id: str, **values: Any) -> None:
        """Set columns of a job."""
        query = update(job).where(job.c.id == job_number(job_id)).values(**values)
        self.service.database.write_now(lambda c: c.execute(query))

    def set_execution(self, job_id: str, device: str, **values: Any) -> None:
        """Set columns of an execution and recount the tallies."""
        number = job_number(job_id)
        is_execution = (execution.c.job == number) & (execution.c.device == number_of(device))

        def write(connection: Connection) -> None:
            connection.execute(update(execution).where(is_execution).values(**values))
            recount_tallies(connection, number)

        self.service.database.write_now(write)

    def row(self, job_id: str) -> dict[str, Any]:
        """Return the stored row of a job."""
        query = select(job).where(job.c.id == job_number(job_id))
        return dict(self.service.database.read_now(lambda c: c.execute(query).mappings().one()))

    def rows(self, job_id: str) -> list[dict[str, Any]]:
        """Return the stored executions of a job by device."""
        query = select(execution).where(execution.c.job == job_number(job_id)).order_by(execution.c.device)
        return [
            dict(row) for row in self.service.database.read_now(lambda c: c.execute(query).mappings().all())
        ]

    def transitions(self, job_id: str, device: str | None = None) -> list[tuple[str | None, str, str]]:
        """Return the transitions of a job, or of one device in it: from, to, cause."""
        is_device = (
            transition.c.device.is_(None) if device is None else transition.c.device == number_of(device)
        )
        query = (
            select(transition.c.before, transition.c.after, transition.c.cause)
            .where(transition.c.job == job_number(job_id), is_device)
            .order_by(transition.c.id)
        )
        return [tuple(row) for row in self.service.database.read_now(lambda c: c.execute(query).all())]

    def count_rows(self) -> tuple[int, ...]:
        """Count the rows of all tables of jobs."""
        tables = (job, job_draft, execution, tally, transition)
        return self.service.database.read_now(
            lambda c: tuple(c.execute(select(func.count()).select_from(each)).scalar_one() for each in tables)
        )

    def tallies(self, job_id: str) -> dict[tuple[int, str], int]:
        """Return the stored tallies of a job without zeros."""
        number = job_number(job_id)
        columns = tally.c
        query = select(columns.wave, columns.state, columns["count"]).where(columns.job == number)
        rows = self.service.database.read_now(lambda c: c.execute(query).all())
        return {(wave, state): total for wave, state, total in rows if total}


def recount_tallies(connection: Connection, number: int) -> None:
    """Replace the tallies of a job by the actual counts of its executions."""
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
        [{"job": number, "wave": wave, "state": state, "count": total} for wave, state, total in rows],
    )
