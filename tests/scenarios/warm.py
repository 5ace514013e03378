"""The name by which tests of the service know programs that are forked."""

from __future__ import annotations

from tests.cli.outside import Program as WarmProgram

__all__ = ["WarmProgram"]
