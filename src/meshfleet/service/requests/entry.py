"""A request in the history, while it runs and when it is over."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from meshfleet.errors import GatewayBusy, GatewayTimeout, GatewayTooOld, Unanswered
from meshfleet.service.accounts.model import Actor
from meshfleet.wire.ids import Mac, device_id, mac_number
from meshfleet.wire.rest import RequestProblem, RequestRecord, RequestState
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from meshfleet.errors import FleetError
    from meshfleet.service.requests.order import Order
    from meshfleet.wire.rest import RequestAnswer


class Entry(Struct, kw_only=True):
    """A request, what became of it, and who asked."""

    device: Mac
    by: Actor
    requested_at: int
    record: RequestRecord
    """As it is shown."""
    changes: bool
    """Whether it may change something."""
    finished_at: int | None = None
    key: str | None = None
    """The idempotency key, and whose it is."""
    digest: str | None = None
    """What came with that key."""
    secrets: tuple[str, ...] = ()
    """The keys that it carries, in hex: to recognise them, and nothing else."""
    is_new: bool = True
    """Whether it is not written down yet."""
    is_unsent: bool = False
    """Whether it was given up before it was sent."""

    @classmethod
    def begin(cls, request_id: str, device: Mac, order: Order, *, by: Actor, now: int) -> Entry:
        """A request that is about to be sent."""
        record = RequestRecord(
            id=request_id,
            state=RequestState.PENDING,
            device=device_id(device),
            gateway=None,
            by=by.title,
            requested_at=write_millis(now),
            finished_at=None,
            request=order.shown,
            response=None,
            problem=None,
        )
        return cls(
            device=device,
            by=by,
            requested_at=now,
            record=record,
            changes=not order.is_read,
            secrets=order.secrets,
        )

    def __repr__(self) -> str:
        return f"Entry({self.record.id})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("id", self.record.id)]

    def go_through(self, gateway: Mac) -> None:
        """It goes this way."""
        self.record = replace(self.record, gateway=gateway)

    def finish(self, answer: RequestAnswer | None, now: int) -> None:
        """A response came, or none was expected."""
        self._end(now, state=RequestState.DONE, response=answer)

    def fail(self, error: FleetError, now: int) -> None:
        """No response came. If nothing was sent, its key is free again (rest-196)."""
        is_late = isinstance(error, GatewayTimeout | GatewayBusy)
        detail = self.discreet(str(error))
        self._end(
            now,
            state=RequestState.TIMED_OUT if is_late else RequestState.FAILED,
            problem=RequestProblem(code=error.code, detail=detail),
        )
        if isinstance(error, GatewayTooOld) or (isinstance(error, Unanswered) and not error.sent):
            self.key, self.is_unsent = None, True

    def discreet(self, words: str) -> str:
        """What a gateway says, without the keys that it was sent: it may repeat them (request-32)."""
        for secret in self.secrets:
            words = re.sub(re.escape(secret), "…", words, flags=re.IGNORECASE)
        return words

    def _end(self, now: int, **changes: Any) -> None:
        self.record = replace(self.record, finished_at=write_millis(now), **changes)
        self.finished_at = now


def columns_of(entry: Entry) -> tuple[object, ...]:
    """The row of an entry, in the order of the table."""
    record = entry.record
    return (
        record.id,
        mac_number(entry.device),
        None if record.gateway is None else mac_number(Mac(record.gateway)),
        record.by,
        entry.requested_at,
        entry.finished_at,
        str(record.state),
        _json(record.request),
        _json(record.response),
        _json(record.problem),
        entry.key,
        entry.digest,
    )


def _json(body: Struct | None) -> str | None:
    return None if body is None else msgspec.json.encode(body).decode()
