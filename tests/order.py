"""Which tests come first, so that the processor is busy until the end of a run.

`--dist worksteal` gives each worker an equally long run of tests, and who is done takes the end of another
run. So what a run begins with stays where it is. Half of the workers begin with the tests of the browser,
which take longest; the others start neither a browser nor a demo fleet. They begin with tests that mostly
wait, and have the processor to themselves if these are left over.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

_BROWSER: Final = "tests/browser/"

_WAITING: Final = (
    "tests/cli/",
    "tests/client/",
    "tests/gateway/online/",
    "tests/gateway/rows/",
    "tests/link/",
    "tests/scenarios/",
    "tests/service/live/",
    "tests/service/mqtt/",
    "tests/service/requests/",
)
"""Folders whose tests wait for three quarters of their time, as the table at the end of a run shows."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = int(getattr(config, "workerinput", {}).get("workercount", 1))
    if workers > 1:
        items[:] = _spread(items, workers)


def _spread(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Let every other run begin with tests of the browser, and those between them with tests that wait."""
    browser = [item for item in items if item.nodeid.startswith(_BROWSER)]
    waiting = [item for item in items if item.nodeid.startswith(_WAITING)]
    rest = (item for item in items if not item.nodeid.startswith((_BROWSER, *_WAITING)))
    spread: list[pytest.Item] = []
    for worker in range(workers):
        length = (len(items) - len(spread)) // (workers - worker)
        first = (
            _share(waiting, worker // 2, workers // 2)
            if worker % 2
            else _share(browser, worker // 2, (workers + 1) // 2)
        )
        spread += [*first, *islice(rest, max(0, length - len(first)))]
    return [*spread, *rest]


def _share(items: Sequence[pytest.Item], number: int, shares: int) -> Sequence[pytest.Item]:
    """Return one of so many equal parts."""
    return items[len(items) * number // shares : len(items) * (number + 1) // shares]
