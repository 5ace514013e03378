"""Entry of the request history: a running or finished request of a REST client."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from meshfleet.errors import GatewayBusy, GatewayTimeout, Unanswered
from meshfleet.errors.protocol import GatewayTooOld
from meshfleet.protocol.ids import Mac, mac_to_int, to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.rest.requests import RequestProblem, RequestRecord, RequestState
from meshfleet.service.actor import Actor

if TYPE_CHECKING:
    from meshfleet.errors import FleetError
    from meshfleet.rest.requests import RequestOutcome
    from meshfleet.service.requests.prepared_request import PreparedRequest


class HistoryEntry(Struct, kw_only=True):
    """Request with its actor and, when finished, its outcome. Times are Unix times in milliseconds."""

    device: Mac
    actor: Actor
    requested_at: int
    record: RequestRecord
    """REST representation of the request and its outcome."""
    is_audited: bool
    """Whether the request is written to the audit log, because it may change something."""
    finished_at: int | None = None
    key: str | None = None
    """Hash of the idempotency key and the actor; None if the request has no key."""
    digest: str | None = None
    """Hash of the request, to detect a different request with the same idempotency key."""
    secrets: tuple[str, ...] = ()
    """Mesh keys in the request in hex, kept only to remove the keys from error messages."""
    is_new: bool = True
    """Whether the entry is not in the database yet."""
    is_unsent: bool = False
    """Whether the request failed before it was sent."""

    @classmethod
    def create(
        cls, request_id: str, device: Mac, prepared: PreparedRequest, *, by: Actor, now: int
    ) -> HistoryEntry:
        """Create the entry of a request that is about to be sent."""
        record = RequestRecord(
            id=request_id,
            state=RequestState.PENDING,
            device=to_device_id(device),
            gateway=None,
            by=by.display_name,
            requested_at=format_millis(now),
            finished_at=None,
            request=prepared.redacted,
            response=None,
            problem=None,
        )
        return cls(
            device=device,
            actor=by,
            requested_at=now,
            record=record,
            is_audited=not prepared.is_read,
            secrets=prepared.secrets,
        )

    def __repr__(self) -> str:
        return f"HistoryEntry({self.record.id})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("id", self.record.id)]

    def set_gateway(self, gateway: Mac) -> None:
        """Set the gateway through which the request is sent."""
        self.record = replace(self.record, gateway=gateway)

    def complete(self, response: RequestOutcome | None, now: int) -> None:
        """Mark the request as done. `response` is None if the operation has no response."""
        self._finish(now, state=RequestState.DONE, response=response)

    def fail(self, error: FleetError, now: int) -> None:
        """Mark the request as failed. Free the idempotency key if the request was not sent (rest-196)."""
        is_timeout = isinstance(error, GatewayTimeout | GatewayBusy)
        detail = self.redact(str(error))
        self._finish(
            now,
            state=RequestState.TIMED_OUT if is_timeout else RequestState.FAILED,
            problem=RequestProblem(code=error.code, detail=detail),
        )
        if isinstance(error, GatewayTooOld) or (isinstance(error, Unanswered) and not error.sent):
            self.key, self.is_unsent = None, True

    def redact(self, text: str) -> str:
        """Return an error message of a gateway without the mesh keys that it may repeat (request-32)."""
        for secret in self.secrets:
            text = re.sub(re.escape(secret), "…", text, flags=re.IGNORECASE)
        return text

    def _finish(self, now: int, **changes: Any) -> None:
        """Set the time, state and outcome of the finished request."""
        self.record = replace(self.record, finished_at=format_millis(now), **changes)
        self.finished_at = now


def to_request_row(entry: HistoryEntry) -> tuple[object, ...]:
    """Return the database row of a history entry, in the column order of the table `request`."""
    record = entry.record
    return (
        record.id,
        mac_to_int(entry.device),
        None if record.gateway is None else mac_to_int(Mac(record.gateway)),
        record.by,
        entry.requested_at,
        entry.finished_at,
        str(record.state),
        _to_json(record.request),
        _to_json(record.response),
        _to_json(record.problem),
        entry.key,
        entry.digest,
    )


def _to_json(body: Struct | None) -> str | None:
    return None if body is None else msgspec.json.encode(body).decode()
