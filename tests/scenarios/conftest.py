"""What all stories share."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The service chooses its own loop."""
    return "asyncio"
