"""Which tests of the service are best run by one worker."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a running service stay on one worker, which so starts it once."""
    for item in items:
        if item.path.is_relative_to(_HERE) and "service" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(_HERE))))
