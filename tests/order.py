"""Which tests come first: those of the browser, as they take longest, and half of the workers have them all.

`--dist worksteal` gives each worker an equally long run of tests, and who is done takes the end of another
run. So what a run begins with stays where it is, and a worker without tests of the browser starts neither a
browser nor a demo fleet.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

_BROWSER: Final = "tests/browser/"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = int(getattr(config, "workerinput", {}).get("workercount", 1))
    browser = [item for item in items if item.nodeid.startswith(_BROWSER)]
    others = [item for item in items if not item.nodeid.startswith(_BROWSER)]
    if workers > 1 and len(browser) < len(others):
        items[:] = _spread(browser, others, workers)


def _spread(first: Sequence[pytest.Item], others: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Let every other run begin with a part of the first ones."""
    total = len(first) + len(others)
    homes = (workers + 1) // 2
    rest = iter(others)
    spread: list[pytest.Item] = []
    for worker in range(workers):
        length = (total - len(spread)) // (workers - worker)
        home = worker // 2
        part = first[len(first) * home // homes : len(first) * (home + 1) // homes] if worker % 2 == 0 else []
        spread += [*part, *islice(rest, max(0, length - len(part)))]
    return spread
