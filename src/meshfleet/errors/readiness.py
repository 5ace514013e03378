"""Reasons why a service is not ready, as `/readyz` reports them (rest-160)."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class ReadinessCode(StrEnum):
    """Stable code of a reason why a service is not ready."""

    STARTING = "starting"
    DISK_FULL = "disk-full"
    DATABASE_UNREACHABLE = "database-unreachable"
    DATABASE_LOCKED = "database-locked"
    SCHEMA = "schema"
    BROKER = "broker"
    DESCRIPTORS = "descriptors"
    DRAINING = "draining"


class ReadinessProblem(NamedTuple):
    """Reason why a part of the service does not work, so that the service is not ready."""

    code: ReadinessCode
    detail: str
    """Message for the log only, because it may name files, addresses and tables."""

    def __str__(self) -> str:
        return self.detail
