"""What tests of gateways share."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The broker's own tests have the others."""
    return "asyncio"
