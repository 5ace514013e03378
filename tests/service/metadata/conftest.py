"""What tests of inquiries share."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The broker's own tests have the others."""
    return "asyncio"
