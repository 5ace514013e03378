"""Timeouts and delays of updates, in milliseconds. Every state has a timeout, so every execution ends."""

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
"""Maximum milliseconds to wait for the response to a request."""

VERSION_CHECK_TIMEOUT: Final = _MINUTE_MS
"""Maximum milliseconds of the version check of a device that already reports the target version."""

OFFLINE_CHECK_TIMEOUT: Final = 10 * _MINUTE_MS
"""Maximum milliseconds to wait for an offline device whose last known version is the target version."""

START_TIMEOUT: Final = 10 * _MINUTE_MS
"""Maximum milliseconds for all tries to start an update."""

_FIRST_PROGRESS_TIMEOUT: Final = 2 * _MINUTE_MS
"""Maximum milliseconds without progress after an accepted start: the gateway downloads the image first."""

LAST_QUERY_TIMEOUT: Final = 90 * _SECOND_MS
"""Maximum milliseconds for the last query before an update is given up: enough for three tries."""

LOST_REQUEST_TIMEOUT: Final = 5 * _MINUTE_MS
"""Milliseconds after which a request without a result counts as lost."""

STATE_QUERY_DELAY: Final = 5 * _SECOND_MS
"""Milliseconds before the update state is read again outside of a transfer."""
RETRY_DELAY: Final = 5 * _SECOND_MS
"""Milliseconds before a failed request is sent again."""

APPLY_RETRY_DELAY: Final = 30 * _SECOND_MS
"""Milliseconds before the command to start a staged image is sent again."""

DFU_MODE_TIMEOUT: Final = 2 * _MINUTE_MS
"""Maximum milliseconds until a gateway receives the device in DFU mode."""

APPLY_TIMEOUT: Final = 15 * _MINUTE_MS
"""Maximum milliseconds until a device has restarted with the new version."""
CANCEL_TIMEOUT: Final = 2 * _MINUTE_MS
_MIN_CONFIRM_TIMEOUT: Final = 15 * _MINUTE_MS
_MIN_HEARTBEATS: Final = 5
_SPARE_HEARTBEATS: Final = 2
"""Number of heartbeats that may get lost without a timeout of the confirmation."""
_MAX_TOTAL_TIMEOUT: Final = 7 * 24 * _HOUR_MS
_TRANSFER_FACTOR: Final = 4

BATCH_MEMBER_DELAY: Final = _MINUTE_MS
"""Additional milliseconds that broadcast members wait, so that the leader sends its request first."""

BATCH_QUERY_SPACING: Final = 500
"""Milliseconds between the queries to two devices of the same broadcast."""

_POLLS_PER_TRANSFER: Final = 20
"""Number of state queries during a transfer that takes as long as estimated."""
_MIN_POLL_INTERVAL, _MAX_POLL_INTERVAL = 2 * _SECOND_MS, 30 * _SECOND_MS

_QUERIES_PER_SECOND: Final = 40
"""Maximum state queries of one job per second. The more devices, the less often each is queried."""
_MIN_POLLS_PER_STEP: Final = 3
"""Minimum number of state queries before a transfer counts as stalled."""

_MAX_START_BACKOFF: Final = _MINUTE_MS
_MAX_ATTEMPT_BACKOFF: Final = 6 * _HOUR_MS
_JITTER: Final = 0.2

DEFAULT_RATES: Final[Mapping[UpdateMethod, float]] = {
    UpdateMethod.DOWNLOAD: 300.0,
    UpdateMethod.BROADCAST: 200.0,
    UpdateMethod.NORDIC_DFU: 2000.0,
}
"""Assumed transfer rates of gateways without a measured rate, in bytes per second."""


def estimate_transfer(size: int, rate: float) -> int:
    """Estimate the duration of a transfer in milliseconds. `size` is in bytes, `rate` in bytes per second."""
    return int(size / max(rate, 1.0) * _SECOND_MS)


def compute_poll_interval(context: UpdateContext) -> int:
    """Return the milliseconds until the next state query during a transfer."""
    interval = min(
        max(estimate_transfer(context.spec.size, context.rate) // _POLLS_PER_TRANSFER, _MIN_POLL_INTERVAL),
        _MAX_POLL_INTERVAL,
    )
    shared_interval = context.spec.transferring_count * _SECOND_MS // _QUERIES_PER_SECOND
    return max(interval, min(shared_interval, context.spec.step_timeout // _MIN_POLLS_PER_STEP))


def compute_first_progress_timeout(spec: UpdateSpec) -> int:
    """Return for how many milliseconds a device may be idle after it accepted the start command."""
    return min(_FIRST_PROGRESS_TIMEOUT, spec.step_timeout)


def compute_confirm_timeout(context: UpdateContext) -> int:
    """Return the timeout of the confirmation in milliseconds: time for the required and some lost heartbeats.

    If the heartbeat interval is unknown, return the total timeout of the job, if the job has one.
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
    """Return the timeout of a whole update in milliseconds, not counting the time in STAGED."""
    if context.spec.total_timeout is not None:
        return context.spec.total_timeout
    transfer = _TRANSFER_FACTOR * estimate_transfer(context.spec.size, context.rate)
    return min(
        transfer + 2 * DFU_MODE_TIMEOUT + APPLY_TIMEOUT + compute_confirm_timeout(context), _MAX_TOTAL_TIMEOUT
    )


def compute_attempt_backoff(execution: ExecutionRecord, spec: UpdateSpec) -> int:
    """Return the milliseconds before the next attempt. The delay doubles with each attempt, with jitter.

    The delay is never zero, because the abort command of one attempt could arrive during the next attempt.
    """
    backoff = min(spec.backoff_base * 2 ** (execution.attempt - 1), _MAX_ATTEMPT_BACKOFF)
    return max(_add_jitter(backoff, f"{execution.job} {execution.device} {execution.attempt}"), RETRY_DELAY)


def compute_start_backoff(execution: ExecutionRecord) -> int:
    """Return the milliseconds before the next try to start. The delay doubles with each try."""
    backoff = min(RETRY_DELAY * 2 ** min(max(execution.tries - 1, 0), 10), _MAX_START_BACKOFF)
    key = f"{execution.job} {execution.device} {execution.attempt} {execution.tries}"
    return _add_jitter(backoff, key)


def _add_jitter(millis: int, key: str) -> int:
    """Vary a delay by up to 20 % in either direction. The same key always gives the same delay."""
    fraction = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big") / 2**32
    return int(millis * (1 + _JITTER * (2 * fraction - 1)))
