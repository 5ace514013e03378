"""Sends the letters of the outbox, and collects what comes of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET

from meshfleet.errors import FleetError, GatewayLost, GatewayTooOld, Unanswered
from meshfleet.service.jobs.update import clocks
from meshfleet.service.jobs.update.events import Answered, Unclear, Unsent
from meshfleet.wire.codes import Operation, Origin, Priority, Status
from meshfleet.wire.ids import Identifier, IdentifierName, number_mac
from meshfleet.wire.requests import Read, WriteDecoded
from meshfleet.wire.responses import ReadDecodedResponse, ReadResponse
from meshfleet.wire.topics import RequestTopic

if TYPE_CHECKING:
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


class Post:
    """Letters on their way. What becomes of them is put into `replies`."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._on_way: dict[asyncio.Task[None], int] = {}
        """Each with its gateway."""
        self.replies: asyncio.Queue[Reply] = asyncio.Queue()

    @property
    def room(self) -> int:
        """How many more can be sent."""
        return AT_ONCE - len(self._on_way)

    @property
    def at_gateways(self) -> Counter[int]:
        """How many are at which gateway."""
        return Counter(self._on_way.values())

    def send(self, letter: Letter) -> None:
        """Send a letter."""
        task = asyncio.create_task(self._send(letter), name=f"jobs.post {letter.id}")
        self._on_way[task] = letter.gateway
        task.add_done_callback(self._on_way.pop)

    async def end(self) -> None:
        """Wait for no answer any more: the next start asks again."""
        for task in self._on_way:
            task.cancel()
        await asyncio.gather(*self._on_way, return_exceptions=True)

    async def _send(self, letter: Letter) -> None:
        self.replies.put_nowait(letter.reply(await self._ask(letter)))

    async def _ask(self, letter: Letter) -> Answered | Unsent | Unclear:
        try:
            answer = await self._asking.ask(
                _topic(letter), _request(letter), timeout=PATIENCE, late=partial(self._hear, letter)
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
        self.replies.put_nowait(letter.reply(_answered(letter, answer)))


def _answered(letter: Letter, answer: Answer) -> Answered:
    return Answered(letter.step, answer.response.status, _value(letter, answer.response))


def _topic(letter: Letter) -> RequestTopic:
    is_name = letter.operation in (Operation.READ_DECODED, Operation.WRITE_DECODED)
    identifier = IdentifierName(letter.identifier) if is_name else Identifier(letter.identifier)
    return RequestTopic(number_mac(letter.gateway), number_mac(letter.target), letter.operation, identifier)


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
