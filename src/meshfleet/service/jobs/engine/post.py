"""Sends the letters of the outbox, and collects what comes of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET

from meshfleet.errors import FleetError, GatewayBusy, GatewayLost, GatewayTooOld, Unanswered
from meshfleet.service.jobs.update import clocks
from meshfleet.service.jobs.update.events import Answered, Unclear, Unsent
from meshfleet.service.jobs.update.model import FIRST
from meshfleet.wire.codes import Operation, Origin, Priority, Status
from meshfleet.wire.ids import number_mac
from meshfleet.wire.requests import Read, WriteDecoded
from meshfleet.wire.responses import ReadDecodedResponse, ReadResponse
from meshfleet.wire.topics import RequestTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from meshfleet.service.jobs.engine.advancing import Reply
    from meshfleet.service.jobs.engine.outbox import Letter
    from meshfleet.service.requests.asking import Answer, Asking
    from meshfleet.wire.requests import Request
    from meshfleet.wire.responses import Response

AT_ONCE: Final = 2000
"""Letters on their way."""

_INSTEAD: Final = frozenset({Origin.EXTENDER, Origin.GATEWAY})
"""Who may answer in the place of a device."""

PATIENCE: Final = clocks.ANSWER / 1000
"""Seconds for an answer."""


class _Sending:
    """A letter, and whether it can still be dropped."""

    __slots__ = ("has_left", "is_dropped", "is_ours", "letter")

    def __init__(self, letter: Letter, is_ours: Callable[[], bool]) -> None:
        self.letter = letter
        self.is_ours = is_ours
        self.has_left = False
        self.is_dropped = False

    def leave(self) -> None:
        """It is sent now, and cannot be dropped any more.

        Raises `GatewayBusy` if its lease has ended meanwhile: another program may have taken it over.
        """
        if not self.is_ours():
            raise GatewayBusy("it waited for its turn until the time for it was over")
        self.has_left = True


class Post:
    """Letters on their way. What becomes of them is put into `replies`."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._on_way: dict[asyncio.Task[None], _Sending] = {}
        self._canceled: set[int] = set()
        """Jobs whose updates must not begin any more."""
        self._replied: set[str] = set()
        """Requests whose replies were not taken over yet."""
        self.replies: asyncio.Queue[Reply] = asyncio.Queue()

    @property
    def room(self) -> int:
        """How many more can be sent."""
        return AT_ONCE - len(self._on_way)

    @property
    def at_gateways(self) -> Counter[int]:
        """How many are at which gateway."""
        return Counter(each.letter.gateway for each in self._on_way.values())

    @property
    def requests(self) -> set[str]:
        """The requests that were sent here, until their replies are taken over: see `settle`."""
        return self._replied.union(each.letter.id for each in self._on_way.values())

    def settle(self, replies: Iterable[Reply]) -> None:
        """Forget requests whose replies were taken over, or could not be."""
        self._replied.difference_update(each.request for each in replies)

    def send(self, letter: Letter, is_ours: Callable[[], bool]) -> None:
        """Send a letter, unless it would begin an update of a canceled job.

        When its turn comes, `is_ours` tells whether it still belongs to this program.
        """
        if self._is_canceled(letter):
            self._reply(_dropped(letter))
            return
        sending = _Sending(letter, is_ours)
        task = asyncio.create_task(self._send(sending), name=f"jobs.post {letter.id}")
        self._on_way[task] = sending
        task.add_done_callback(self._forget)

    def set_canceled(self, jobs: Iterable[int]) -> None:
        """Replace the jobs that are being canceled, and drop their starts: see `drop_starts`."""
        self._canceled = set(jobs)
        if self._canceled:
            self._drop_starts()

    def drop_starts(self, job: int) -> None:
        """Drop the commands of a canceled job that would begin updates and still wait for their turn.

        Those that come later are dropped as well, until `set_canceled` leaves the job out.
        """
        self._canceled.add(job)
        self._drop_starts()

    def _drop_starts(self) -> None:
        for task, each in self._on_way.items():
            if self._is_canceled(each.letter) and not each.has_left and not each.is_dropped:
                each.is_dropped = True
                task.cancel()

    def _is_canceled(self, letter: Letter) -> bool:
        return letter.job in self._canceled and letter.step in FIRST

    def _forget(self, task: asyncio.Task[None]) -> None:
        each = self._on_way.pop(task)
        if each.is_dropped and task.cancelled():
            self._reply(_dropped(each.letter))

    async def end(self) -> None:
        """Wait for no answer any more: the next start asks again."""
        for task in self._on_way:
            task.cancel()
        await asyncio.gather(*self._on_way, return_exceptions=True)

    async def _send(self, sending: _Sending) -> None:
        self._reply(sending.letter.reply(await self._ask(sending)))

    async def _ask(self, sending: _Sending) -> Answered | Unsent | Unclear:
        letter = sending.letter
        try:
            answer = await self._asking.ask(
                _topic(letter),
                _request(letter),
                timeout=PATIENCE,
                late=partial(self._hear, letter),
                leaves=sending.leave,
            )
        except GatewayTooOld:
            return Answered(letter.step, Status.UNKNOWN_OPERATION)
        except GatewayLost as exc:
            return Unclear(letter.step, str(exc), is_cut=True)
        except Unanswered as exc:
            return (Unclear if exc.sent else Unsent)(letter.step, str(exc))
        except FleetError as exc:
            return Unclear(letter.step, str(exc))
        return _answered(letter, answer)

    def _hear(self, letter: Letter, answer: Answer) -> None:
        """Pass on an answer that came too late to move anything: it is evidence (rest-143)."""
        self._reply(letter.reply(_answered(letter, answer)))

    def _reply(self, reply: Reply) -> None:
        self._replied.add(reply.request)
        self.replies.put_nowait(reply)


def _dropped(letter: Letter) -> Reply:
    return letter.reply(Unsent(letter.step, "the job was canceled before it was sent"))


def _answered(letter: Letter, answer: Answer) -> Answered:
    return Answered(letter.step, answer.response.status, _value(letter, answer.response))


def _topic(letter: Letter) -> RequestTopic:
    return RequestTopic(
        number_mac(letter.gateway), number_mac(letter.target), letter.operation, letter.identifier
    )


def _request(letter: Letter) -> Request:
    # People come first: what they ask for overtakes what waits here.
    if letter.operation is Operation.WRITE_DECODED:
        return WriteDecoded(value=letter.value, priority=Priority.LOW)
    return Read(priority=Priority.LOW)


def _value(letter: Letter, response: Response) -> Any:
    """What was read. What others say in the place of a device is no proof of anything."""
    if letter.target != letter.gateway and response.origin in _INSTEAD:
        return None
    if isinstance(response, ReadResponse | ReadDecodedResponse) and response.value is not UNSET:
        return response.value
    return None
