"""`fleet.jobs`: updating devices, many at a time.

Every order carries a key by which the service knows it again, so that it may be said twice when a connection
is lost, and makes one job.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from meshfleet.client.names import id_of as device_id_of
from meshfleet.client.names import ids_of, mac_of, several, text_of
from meshfleet.client.rest import firmware as catalogue
from meshfleet.client.rest.calls import Call, query, written
from meshfleet.client.rest.orders import Order, order_of
from meshfleet.client.rest.pages import walk
from meshfleet.client.rest.watching import watch
from meshfleet.wire import rest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from typing import Unpack

    from meshfleet.client.rest.calls import Answer
    from meshfleet.client.rest.desk import Desk
    from meshfleet.wire.rest import (
        DryRun,
        Execution,
        ExecutionDetail,
        ExecutionState,
        Job,
        JobState,
        JobSummary,
    )

_PATIENCE: Final = 60.0
"""Seconds that the service may take longer than usual to find and write down a hundred thousand devices."""


class Jobs:
    """The update jobs of a fleet. Each is named by its id, or by what was told of it."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def create(self, name: str, firmware: str | rest.Firmware, **order: Unpack[Order]) -> Job:
        """Update devices to this firmware, which is released. The devices are those of any part of the order.

        Those that cannot take it are in the job, too, as SKIPPED and with the reason; see `dry_run`.
        """
        body = order_of(name, catalogue.id_of(firmware), order, dry_run=False)
        return self._desk.read(rest.Job, await self._order(rest.JOBS, body))

    async def dry_run(self, name: str, firmware: str | rest.Firmware, **order: Unpack[Order]) -> DryRun:
        """What a job would do: who would be updated, who would not and why, in which waves, in what time."""
        body = order_of(name, catalogue.id_of(firmware), order, dry_run=True)
        return self._desk.read(rest.DryRun, await self._order(rest.JOBS, body))

    def list(
        self, *, states: JobState | str | Iterable[JobState | str] = (), firmware: str | None = None
    ) -> AsyncGenerator[Job, None]:
        """Jobs in any of these states, the newest first: with this firmware, or with any."""
        chosen = query({"FirmwareId": firmware}, {"State": several(states)})
        return walk(self._desk, rest.JobPage, rest.JOBS, chosen)

    async def show(self, job: str | Job) -> Job:
        """A job, and how it goes."""
        return await self._desk.get(rest.Job, rest.job_path(_id_of(job)))

    async def summary(self, job: str | Job) -> JobSummary:
        """Its executions, counted by why they failed, by what they wait for, and by gateway."""
        return await self._desk.get(rest.JobSummary, f"{rest.job_path(_id_of(job))}/summary")

    def executions(  # noqa: PLR0913 # one for each filter, by its name
        self,
        job: str | Job,
        *,
        states: ExecutionState | str | Iterable[ExecutionState | str] = (),
        gateway: str | None = None,
        reason_codes: str | Iterable[str] = (),
        devices: str | Iterable[str] = (),
        left_out: bool | None = None,
    ) -> AsyncGenerator[Execution, None]:
        """The parts of devices in a job: in any of these states, through one gateway, for these reasons.

        `left_out` asks for those that were left out from the beginning, or for the others.
        """
        single = {"Gateway": None if gateway is None else mac_of(gateway), "LeftOut": left_out}
        repeated = {
            "State": several(states),
            "ReasonCode": several(reason_codes),
            "Ids": ids_of(devices, "devices"),
        }
        chosen = query(single, repeated)
        return walk(self._desk, rest.ExecutionPage, rest.executions_path(_id_of(job)), chosen)

    async def execution(self, job: str | Job, device: str) -> ExecutionDetail:
        """The part of one device, with all that happened and what proves it."""
        return await self._desk.get(
            rest.ExecutionDetail, rest.execution_path(_id_of(job), device_id_of(device))
        )

    async def apply(self, job: str | Job) -> Job:
        """Let a job begin that was made without `auto_apply`, or devices start what they have staged."""
        return await self._steer(job, "apply")

    async def pause(self, job: str | Job) -> Job:
        """Begin no more updates. Those that are under way go on."""
        return await self._steer(job, "pause")

    async def resume(self, job: str | Job) -> Job:
        """Go on with a paused job."""
        return await self._steer(job, "resume")

    async def cancel(self, job: str | Job) -> Job:
        """End a job early. A device that is about to start its new version is awaited."""
        return await self._steer(job, "cancel")

    async def retry(self, job: str | Job) -> Job:
        """Make a new job for devices whose update failed, timed out or was canceled."""
        path = rest.job_deed_path(_id_of(job), "retry")
        return self._desk.read(rest.Job, await self._order(path, None))

    async def delete(self, job: str | Job) -> None:
        """Delete a job that is over or was never started; the audit log keeps how it went."""
        await self._desk.delete(rest.job_path(_id_of(job)))

    def watch(self, job: str | Job) -> AsyncGenerator[Job, None]:
        """A job as it is now, and again whenever it has changed, until it is over."""
        return watch(self._desk, _id_of(job))

    async def _steer(self, job: str | Job, deed: str) -> Job:
        return await self._desk.post(rest.Job, rest.job_deed_path(_id_of(job), deed))

    async def _order(self, path: str, order: rest.NewJob | None) -> Answer:
        call = Call(
            method="POST",
            path=path,
            body=written(order),
            headers=(("Idempotency-Key", secrets.token_urlsafe(16)),),
            is_repeatable=True,
            patience=_PATIENCE,
        )
        return await self._desk.ask(call)


def _id_of(job: str | Job) -> str:
    return text_of(job if isinstance(job, str) else job.id, "job")
