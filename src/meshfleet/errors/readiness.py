"""Conditions that keep a service from its work, as `/readyz` names them (rest-160)."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class ReadinessCode(StrEnum):
    """A stable code for each reason why a service is not ready."""

    STARTING = "starting"
    DISK_FULL = "disk-full"
    DATABASE_UNREACHABLE = "database-unreachable"
    DATABASE_LOCKED = "database-locked"
    SCHEMA = "schema"
    BROKER = "broker"
    DESCRIPTORS = "descriptors"
    DRAINING = "draining"


class ReadinessProblem(NamedTuple):
    """A condition that keeps a part of the service from its work."""

    code: ReadinessCode
    detail: str
    """For the log only: it may name files, addresses and tables."""

    def __str__(self) -> str:
        return self.detail
