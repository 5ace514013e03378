"""Bodies for operators."""

from __future__ import annotations

from typing import Literal

from meshfleet.errors.readiness import ReadinessCode  # noqa: TC001 # msgspec reads it
from meshfleet.rest.bodies import ResponseBody


class Health(ResponseBody, frozen=True, kw_only=True):
    """The process is up (rest-159)."""

    status: Literal["ok"]


class Ready(ResponseBody, frozen=True, kw_only=True):
    """The service does its work (rest-160)."""

    status: Literal["ready"]


class ReadinessReason(ResponseBody, frozen=True, kw_only=True):
    """A condition that keeps the service from its work; `text` is for people and may change."""

    code: ReadinessCode
    text: str


class NotReady(ResponseBody, frozen=True, kw_only=True):
    """The service does not do its work, and why (rest-160)."""

    status: Literal["unavailable"]
    reasons: tuple[ReadinessReason, ...]


class ReasonText(ResponseBody, frozen=True, kw_only=True):
    """A reason as a client reads it: a newer service may have codes that this client does not know."""

    text: str


class NotReadyReply(ResponseBody, frozen=True, kw_only=True):
    """The reasons of a service that is not ready, as a client reads them."""

    reasons: tuple[ReasonText, ...]
