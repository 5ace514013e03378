"""Bodies of the health and readiness checks."""

from __future__ import annotations

from typing import Literal

from meshfleet.errors.readiness import ReadinessCode  # noqa: TC001 # msgspec reads it
from meshfleet.rest.bodies import ResponseBody


class Health(ResponseBody, frozen=True, kw_only=True):
    """Result of the health check: the process is running (rest-159)."""

    status: Literal["ok"]


class Ready(ResponseBody, frozen=True, kw_only=True):
    """Result of the readiness check of a service that is ready (rest-160)."""

    status: Literal["ready"]


class ReadinessReason(ResponseBody, frozen=True, kw_only=True):
    """Condition that keeps the service from being ready; `text` is for people and may change."""

    code: ReadinessCode
    text: str


class NotReady(ResponseBody, frozen=True, kw_only=True):
    """Result of the readiness check of a service that is not ready (rest-160)."""

    status: Literal["unavailable"]
    reasons: tuple[ReadinessReason, ...]


class ReloadedSettings(ResponseBody, frozen=True, kw_only=True):
    """Result of a reload (rest-223): names of changed settings that are in use now, or need a restart."""

    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


class ReasonText(ResponseBody, frozen=True, kw_only=True):
    """Reason as a client decodes it: a newer service may have codes that this client does not know."""

    text: str


class NotReadyReply(ResponseBody, frozen=True, kw_only=True):
    """Reasons of a service that is not ready, as a client decodes them."""

    reasons: tuple[ReasonText, ...]
