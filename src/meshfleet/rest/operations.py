"""JSON bodies of the health and readiness checks of a service."""

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
    """Reason why a service is not ready: a stable code, and a sentence for people that may change."""

    code: ReadinessCode
    text: str


class NotReady(ResponseBody, frozen=True, kw_only=True):
    """Result of the readiness check of a service that is not ready (rest-160)."""

    status: Literal["unavailable"]
    reasons: tuple[ReadinessReason, ...]


class ReasonText(ResponseBody, frozen=True, kw_only=True):
    """Reason why a service is not ready, without the code, which an older client may not know."""

    text: str


class NotReadyReply(ResponseBody, frozen=True, kw_only=True):
    """Reasons why a service is not ready, as a client decodes them."""

    reasons: tuple[ReasonText, ...]
