"""JSON bodies of the health and readiness checks of a service, and of the size of its data."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from meshfleet.errors.readiness import ReadinessCode  # noqa: TC001 # msgspec reads it
from meshfleet.rest.bodies import ResponseBody, TimeText


class Health(ResponseBody, frozen=True, kw_only=True):
    """Result of the health check: the process is running (rest-159)."""

    status: Literal["ok"]


class Ready(ResponseBody, frozen=True, kw_only=True):
    """Result of the readiness check of a service that is ready (rest-160)."""

    status: Literal["ready"]


FORWARDING_HEADER: Final = "X-Meshfleet-Forwarding"
"""Header of `/readyz` with the `Forwarding` of its request."""


class Forwarding(StrEnum):
    """Outcome of the header `X-Forwarded-For` of a request (rest-169)."""

    ABSENT = "absent"
    IGNORED = "ignored"
    """Its sender is not one of the trusted proxies."""
    TRUSTED = "trusted"


class ReadinessReason(ResponseBody, frozen=True, kw_only=True):
    """Reason why a service is not ready: a stable code, and a sentence for people that may change."""

    code: ReadinessCode
    text: str


class NotReady(ResponseBody, frozen=True, kw_only=True):
    """Result of the readiness check of a service that is not ready (rest-160)."""

    status: Literal["unavailable"]
    reasons: tuple[ReadinessReason, ...]


class ReloadedSettings(ResponseBody, frozen=True, kw_only=True):
    """Result of a reload (rest-224): names of changed settings that are in use now, or need a restart."""

    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


class ReasonText(ResponseBody, frozen=True, kw_only=True):
    """Reason why a service is not ready, without the code, which an older client may not know."""

    text: str


class NotReadyReply(ResponseBody, frozen=True, kw_only=True):
    """Reasons why a service is not ready, as a client decodes them."""

    reasons: tuple[ReasonText, ...]


class StoragePart(StrEnum):
    """Part of the data of a service."""

    DATABASE = "database"
    SAMPLES = "samples"
    IMAGES = "images"


class StoragePartSize(ResponseBody, frozen=True, kw_only=True):
    """Size of a part of the data, and its growth."""

    part: StoragePart
    bytes: int
    growth_per_day: int | None
    """Bytes per day in the last seven days; null if less than a day was measured."""


class Storage(ResponseBody, frozen=True, kw_only=True):
    """Size of the data of a service, and the forecast when its disk is full (rest-222)."""

    parts: list[StoragePartSize]
    free_bytes: int | None
    """Free bytes on the disk of the data; null with PostgreSQL, whose disk the service does not know."""
    full_at: TimeText | None
    """Time at which the disk is full; null if that is not foreseen, or not known."""
    measured_since: TimeText
    """Beginning of the time in which the growth was measured."""
