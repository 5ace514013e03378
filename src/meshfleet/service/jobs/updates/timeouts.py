"""How long things may take. Every state has a clock, so every execution comes to an end."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from meshfleet.protocol.products import UpdateMethod
from meshfleet.service.presence.last_seen import DEFAULT_INTERVAL_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext, UpdateSpec

_SECOND_MS: Final = 1000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HOUR_MS: Final = 60 * _MINUTE_MS

RESPONSE_TIMEOUT: Final = 30 * _SECOND_MS
"""For a response to a command or a question."""

VERSION_CHECK_TIMEOUT: Final = _MINUTE_MS
"""For a device to tell its version that reports the target version already."""

OFFLINE_CHECK_TIMEOUT: Final = 10 * _MINUTE_MS
"""For such a device to be connected, so that it can be asked."""

START_TIMEOUT: Final = 10 * _MINUTE_MS
"""For all tries to begin an update."""

_FIRST_PROGRESS_TIMEOUT: Final = 2 * _MINUTE_MS
"""For a device that has accepted the start to show progress: its gateway fetches the image first."""

LAST_QUERY_TIMEOUT: Final = 90 * _SECOND_MS
"""For an answer to the last question before an update is given up: time for three tries."""

LOST_REQUEST_TIMEOUT: Final = 5 * _MINUTE_MS
"""After which a request counts as lost whose fate nobody told."""

STATE_QUERY_DELAY: Final = 5 * _SECOND_MS
RETRY_DELAY: Final = 5 * _SECOND_MS
"""Before a command is sent again that did not come through."""

APPLY_RETRY_DELAY: Final = 30 * _SECOND_MS
"""Before a device is told again to start what it has."""

DFU_MODE_TIMEOUT: Final = 2 * _MINUTE_MS
"""For a device to show up in DFU mode."""

APPLY_TIMEOUT: Final = 15 * _MINUTE_MS
CANCEL_TIMEOUT: Final = 2 * _MINUTE_MS
_MIN_CONFIRM_TIMEOUT: Final = 15 * _MINUTE_MS
_MIN_HEARTBEATS: Final = 5
_SPARE_HEARTBEATS: Final = 2
"""Heartbeats that may get lost, of those that are waited for."""
_MAX_TOTAL_TIMEOUT: Final = 7 * 24 * _HOUR_MS
_TRANSFER_FACTOR: Final = 4

BATCH_MEMBER_DELAY: Final = _MINUTE_MS
"""So much later than the one that asks for all, the others of a broadcast ask themselves."""

BATCH_QUERY_SPACING: Final = 500
"""Between two devices of a broadcast that are asked one after the other."""

_POLLS_PER_TRANSFER: Final = 20
"""So often an update is asked how far it is, if it takes as long as it seems to need."""
_MIN_POLL_INTERVAL, _MAX_POLL_INTERVAL = 2 * _SECOND_MS, 30 * _SECOND_MS

_QUERIES_PER_SECOND: Final = 40
"""So many of these questions a job asks in a second: with more devices each of them rests longer."""
_MIN_POLLS_PER_STEP: Final = 3
"""So often at least a transfer is asked before it counts as stuck."""

_MAX_START_BACKOFF: Final = _MINUTE_MS
_MAX_ATTEMPT_BACKOFF: Final = 6 * _HOUR_MS
_JITTER: Final = 0.2

DEFAULT_RATES: Final[Mapping[UpdateMethod, float]] = {
    UpdateMethod.DOWNLOAD: 300.0,
    UpdateMethod.BROADCAST: 200.0,
    UpdateMethod.NORDIC_DFU: 2000.0,
}
"""Bytes per second that are expected of a gateway that was never measured."""


def estimate_transfer(size: int, rate: float) -> int:
    """How long the transfer of an image seems to take."""
    return int(size / max(rate, 1.0) * _SECOND_MS)


def compute_poll_interval(context: UpdateContext) -> int:
    """How long to wait before the next question how far a transfer is."""
    usual = min(
        max(estimate_transfer(context.spec.size, context.rate) // _POLLS_PER_TRANSFER, _MIN_POLL_INTERVAL),
        _MAX_POLL_INTERVAL,
    )
    turns = context.spec.transferring_count * _SECOND_MS // _QUERIES_PER_SECOND
    return max(usual, min(turns, context.spec.step_timeout // _MIN_POLLS_PER_STEP))


def compute_first_progress_timeout(spec: UpdateSpec) -> int:
    """Return how long a device that has accepted the start may be idle before it counts as lost."""
    return min(_FIRST_PROGRESS_TIMEOUT, spec.step_timeout)


def compute_confirm_timeout(context: UpdateContext) -> int:
    """Return how long a device has to prove that it is well: time for its heartbeats, and some more.

    If its heartbeat interval is not known, the job's own clock for the whole update decides, if it has one.
    """
    if context.heartbeat_interval is None and context.spec.total_timeout is not None:
        return context.spec.total_timeout
    heartbeats = max(_MIN_HEARTBEATS, context.spec.heartbeats + _SPARE_HEARTBEATS)
    return max(
        _MIN_CONFIRM_TIMEOUT,
        heartbeats
        * (DEFAULT_INTERVAL_MS if context.heartbeat_interval is None else context.heartbeat_interval),
    )


def compute_total_timeout(context: UpdateContext) -> int:
    """How long an update may take from its first command to its end, but for the time that it is staged."""
    if context.spec.total_timeout is not None:
        return context.spec.total_timeout
    transfer = _TRANSFER_FACTOR * estimate_transfer(context.spec.size, context.rate)
    return min(
        transfer + 2 * DFU_MODE_TIMEOUT + APPLY_TIMEOUT + compute_confirm_timeout(context), _MAX_TOTAL_TIMEOUT
    )


def compute_attempt_backoff(execution: ExecutionRecord, spec: UpdateSpec) -> int:
    """How long to wait before the next attempt: longer each time, not for all alike, and never at once.

    The last word to the attempt before must not reach the next one.
    """
    longer = min(spec.backoff_base * 2 ** (execution.attempt - 1), _MAX_ATTEMPT_BACKOFF)
    return max(_with_jitter(longer, f"{execution.job} {execution.device} {execution.attempt}"), RETRY_DELAY)


def compute_start_backoff(execution: ExecutionRecord) -> int:
    """Return how long to wait before the next try to begin, within one attempt: longer after each try."""
    longer = min(RETRY_DELAY * 2 ** min(max(execution.tries - 1, 0), 10), _MAX_START_BACKOFF)
    key = f"{execution.job} {execution.device} {execution.attempt} {execution.tries}"
    return _with_jitter(longer, key)


def _with_jitter(millis: int, key: str) -> int:
    """Spread a pause by 20 % in either direction. The same key always gives the same pause."""
    dice = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big") / 2**32
    return int(millis * (1 + _JITTER * (2 * dice - 1)))
