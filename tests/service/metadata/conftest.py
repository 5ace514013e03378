"""Fixtures of the tests of metadata."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Run on asyncio only: the tests of the broker cover the other event loops."""
    return "asyncio"
