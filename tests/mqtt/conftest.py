"""Event loop of the MQTT tests."""

from __future__ import annotations

import pytest

from tests.selection import backend_for_loop


@pytest.fixture
def anyio_backend(event_loop: str) -> tuple[str, dict[str, bool]]:
    return backend_for_loop(event_loop)
