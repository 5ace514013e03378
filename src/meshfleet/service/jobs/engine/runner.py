"""Runs jobs: looks at clocks, hears what is reported, lets executions begin, and sends their requests.

All that it knows is in the database. It can be killed at any point, and several can run at once: each takes
what no other has taken, and goes on with what one that has ended left behind.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.errors import FleetError
from meshfleet.service.clock import Moment
from meshfleet.service.jobs.changes import nobody
from meshfleet.service.jobs.engine import advancing, outbox, stepping, uptime
from meshfleet.service.jobs.engine.loading import Orders
from meshfleet.service.jobs.engine.post import PATIENCE, Post
from meshfleet.service.jobs.making import freezing, superseding
from meshfleet.wire.rest import JobState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from meshfleet.db import Database
    from meshfleet.service.clock import Now, Steady
    from meshfleet.service.jobs.changes import Changed, Tell
    from meshfleet.service.jobs.engine.advancing import Reply
    from meshfleet.service.requests.asking import Asking
    from meshfleet.service.requests.gateway_selection import SelectGateways

_log = logging.getLogger(__name__)

_ROUND: Final = 0.5
"""Seconds between two looks at jobs and clocks."""

_IDLE: Final = 5000
"""Milliseconds between two looks at a job that waits for something else."""

_BREATH: Final = 0.005
"""Seconds between two transactions when there is much to do: others want to write, too."""

_REST: Final = 2.0
"""Seconds between two looks while there is nothing to do."""

LEFT: Final = 5.0
"""Seconds between two looks for what others left behind."""

_TIDIED: Final = 3_600_000
"""Milliseconds between two looks for what was broken off."""

_BROKEN_OFF: Final = 3_600_000
"""Milliseconds after which nobody makes a job any more that is not there."""

_MARGIN: Final = 30_000
"""Milliseconds that an answer has on its way into the database."""

_GATHERED: Final = 0.03
"""Seconds for which answers are gathered."""


class Runner:
    """Runs all jobs of a database, perhaps together with others."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        database: Database,
        asking: Asking,
        now: Now,
        *,
        steady: Steady,
        tell: Tell = nobody,
        select: SelectGateways | None = None,
        pause: float = LEFT,
    ) -> None:
        """`tell` hears which jobs and which executions have changed.

        `select` chooses gateways; None: each device is asked through the gateway that it belongs to.
        So many seconds pass between two looks at requests that others have left behind: `pause`.
        """
        self._pause = pause
        self._database = database
        self._post = Post(asking)
        self._wall = now
        self._steady = steady
        self._tell = tell
        self._select = select
        self._orders = Orders()
        self._has_news = asyncio.Event()
        self._has_letters = asyncio.Event()
        self._has_remains = asyncio.Event()
        self._is_failing = False
        self._noted_at: int | None = None
        """When this program last noted that jobs are run."""
        self._left = 0
        """How much was left to do when the time of a round was over."""
        self._rests: dict[int, int] = {}
        """Jobs that have nothing to do, and until when they are not looked at unless something happens."""

    def wake(self) -> None:
        """Somebody made or changed a job."""
        self._rests.clear()
        self._has_news.set()
        self._has_remains.set()

    async def run(self) -> None:
        """Run until cancelled."""
        if self._database.is_sqlite:  # there is no other program, so these were left behind by one before us
            await self._database.write(outbox.free)
        while not await self._try(self._resume):  # noqa: ASYNC110 # the database may be away
            await asyncio.sleep(_ROUND)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._go_round(), name="jobs.rounds")
                tasks.create_task(self._send(), name="jobs.post")
                tasks.create_task(self._take_replies(), name="jobs.replies")
                tasks.create_task(self._find_left(), name="jobs.left")
                tasks.create_task(self._tidy(), name="jobs.tidy")
        finally:
            await self._post.end()

    # Rounds

    async def _go_round(self) -> None:
        while True:
            pause = _REST
            if await self._try(self._round):
                pause = _ROUND if self._left == 0 else _BREATH
            await self._rest(pause)

    async def _round(self) -> bool:
        """Do what there is to do, for a while; whether there are jobs at all."""
        await self._resume()
        jobs = await self._open_jobs()
        # Another program may have stepped a canceled job, and a start may be taken while its job is canceled.
        self._post.set_canceled(job for job, state in jobs.items() if state is JobState.CANCELING)
        self._rests = {job: until for job, until in self._rests.items() if job in jobs}
        until = self._steady() + int(_ROUND * 1000)
        left, more = list(jobs), [bool(jobs)]
        while (left or any(more)) and self._steady() < until:
            more = [await self._look(), await self._hear()]
            left = [job for job in left if not self._rests_now(job) and await self._try_step(job)]
            await asyncio.sleep(_BREATH if left or any(more) else 0)
        self._left = len(left) + sum(more) if jobs else 0
        return bool(jobs)

    async def _try_step(self, job: int) -> bool:
        return await self._try(lambda: self._step(job))

    def _rests_now(self, job: int) -> bool:
        return self._steady() < self._rests.get(job, 0)

    async def _open_jobs(self) -> dict[int, JobState]:
        found: dict[int, JobState] = {}
        while some := await self._database.read(stepping.open_jobs, max(found, default=0)):
            found |= some
        return found

    async def _resume(self) -> bool:
        """Note that jobs are run now; after an outage clocks go on from where they stood."""
        now = self._steady()
        if self._noted_at is None or now - self._noted_at >= uptime.PAUSE:
            await self._database.write(uptime.resume, now, self._noted_at)
            self._noted_at = now
        return True

    async def _look(self) -> bool:
        await self._resume()
        routes = None
        if self._select is not None:
            devices = await self._database.read(advancing.due_devices, self._steady())
            routes = await self._select(devices)
        done = await self._database.write(advancing.look, self._orders, self._moment, routes)
        self._go_on(done.changed, done.asks)
        return done.is_full

    async def _hear(self) -> bool:
        devices = await self._database.read(advancing.devices_with_news)
        if not devices:
            return False
        routes = None if self._select is None else await self._select(devices)
        done = await self._database.write(advancing.hear, self._orders, devices, self._moment, routes)
        self._go_on(done.changed, done.asks)
        return done.is_full

    async def _step(self, job: int) -> bool:
        routes: Mapping[int, int | None] | None = None if self._select is None else {}
        done = await self._database.write(stepping.step, self._orders, job, self._moment, routes)
        self._go_on(done.changed, done.asks, jobs=[job] if done.is_new else [])
        if self._select is not None and done.unrouted:
            routes = await self._select(done.unrouted)
            done = await self._database.write(stepping.step, self._orders, job, self._moment, routes)
            self._go_on(done.changed, done.asks, jobs=[job] if done.is_new else [])
        if done.is_canceling:
            self._post.drop_starts(job)
        if done.is_idle:
            self._rests[job] = self._steady() + _IDLE
        return done.is_full or bool(done.unrouted)

    @property
    def _moment(self) -> Moment:
        return Moment(self._steady(), self._wall())

    def _go_on(self, changed: list[Changed], asks: int, jobs: list[int] | None = None) -> None:
        if asks:
            self._has_letters.set()
        for job in {each.job for each in changed}:
            self._rests.pop(job, None)
        if changed or jobs:
            self._tell(jobs or [], changed)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._has_news.wait()
        except TimeoutError:
            return
        self._has_news.clear()

    # Letters

    async def _send(self) -> None:
        while True:
            while await self._try(self._send_some):  # noqa: ASYNC110 # others write meanwhile
                await asyncio.sleep(_BREATH)
            try:
                async with asyncio.timeout(_REST):
                    await self._has_letters.wait()
            except TimeoutError:
                continue
            self._has_letters.clear()

    async def _send_some(self) -> bool:
        """Send letters, if there is room; whether there may be more."""
        most = min(outbox.AT_ONCE, self._post.room)
        if not most:
            return True
        until = self._steady() + int(PATIENCE * 1000) + _MARGIN
        taken = await self._database.write(outbox.take, most, self._post.at_gateways, until=until)
        for letter in taken.letters:
            self._post.send(letter, lambda: self._steady() < until)
        return taken.is_full

    async def _take_replies(self) -> None:
        while True:
            replies = [await self._post.replies.get()]
            await asyncio.sleep(_GATHERED)
            while not self._post.replies.empty() and len(replies) < advancing.AT_ONCE:
                replies.append(self._post.replies.get_nowait())
            await self._try(lambda replies=replies: self._reply(replies))  # type: ignore[misc] # as they are now
            self._post.settle(replies)
            self._has_letters.set()  # where these came from there is room for others

    async def _find_left(self) -> None:
        while True:
            await self._try(self._reply_for_others)
            await asyncio.sleep(self._pause)

    async def _tidy(self) -> None:
        """Finish what was broken off while jobs were made, and remove the rows of those that are gone."""
        while True:
            await self._try(self._take_over)
            until = self._steady() + _TIDIED
            while (left := until - self._steady()) > 0:
                await self._try(self._sweep)
                with suppress(TimeoutError):
                    async with asyncio.timeout(left / 1000):
                        await self._has_remains.wait()
                self._has_remains.clear()

    async def _take_over(self) -> bool:
        await superseding.take_over_all(self._database, self._wall(), self._tell)
        return True

    async def _sweep(self) -> bool:
        """Remove the rows of deleted jobs and of drafts that were given up, in chunks."""
        while await self._database.write(freezing.sweep, self._wall() - _BROKEN_OFF):  # noqa: ASYNC110 # as above
            await asyncio.sleep(_BREATH)
        return True

    async def _reply_for_others(self) -> bool:
        """Take over requests whose senders have ended.

        A suspension of the machine ends leases, but not our requests: their timeouts stand still meanwhile.
        """
        ours = self._post.requests
        found = await self._database.read(outbox.left_behind, self._steady(), len(ours))
        left = [each for each in found if each.request not in ours][: outbox.AT_ONCE]
        return await self._reply(left) if left else False

    async def _reply(self, replies: list[Reply]) -> bool:
        await self._resume()
        routes = None if self._select is None else await self._select([each.device for each in replies])
        done = await self._database.write(advancing.reply, self._orders, replies, self._moment, routes)
        self._go_on(done.changed, done.asks)
        if done.changed:
            self._has_news.set()
        return True

    async def _try(self, work: Callable[[], Awaitable[bool]]) -> bool:
        """Do something that needs the database; if that is away, what it was about is done later."""
        try:
            done = await work()
        except (FleetError, DBAPIError) as exc:
            if not self._is_failing:
                _log.warning("jobs cannot go on: %s", type(exc).__name__)
        except Exception:  # noqa: BLE001 # whatever it is, it must not end the service
            if not self._is_failing:
                _log.exception("jobs cannot go on, which is a defect of ours")
        else:
            self._is_failing = False
            return done
        self._is_failing = True
        await asyncio.sleep(_ROUND)
        return False
