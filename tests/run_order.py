"""Which tests come first, so that the processor is busy from the beginning of a run to its end.

`--dist worksteal` gives each worker an equally long run of tests, and who is done takes the end of another
run. So what a run begins with stays where it is. Of four workers, two begin with the tests of the browser,
which take longest, so that the others start neither a browser nor a demo fleet. One begins with tests that
mostly wait: together they would leave the processor idle.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

_BROWSER: Final = "tests/browser/"

_IDLE_FOLDERS: Final = (
    "tests/scenarios/",
    "tests/cli/",
    "tests/service/requests/",
    "tests/mqtt/client/",
    "tests/client/",
    "tests/service/live/",
    "tests/service/embedded_broker/",
    "tests/emulator/runtime/",
    "tests/emulator/conformance/",
)
"""Folders whose tests wait for three quarters of their time, as the table at the end of a run shows."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = int(getattr(config, "workerinput", {}).get("workercount", 1))
    if workers > 1:
        items[:] = _assign_runs(items, workers)


def _assign_runs(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Choose what each run begins with, and fill it up with all other tests."""
    browser = [item for item in items if item.nodeid.startswith(_BROWSER)]
    waiting = [item for folder in _IDLE_FOLDERS for item in items if item.nodeid.startswith(folder)]
    others = (item for item in items if not item.nodeid.startswith((_BROWSER, *_IDLE_FOLDERS)))
    spread: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for worker in range(workers):
        length = (len(items) - len(spread)) // (workers - worker)
        first: Sequence[pytest.Item] = []
        if worker % 2 == 0:
            first = _share(browser, worker // 2, (workers + 1) // 2)
        elif worker % 4 == 1:
            first = _share(waiting, worker // 4, (workers + 2) // 4)
        left += first[length:]
        spread += [*first[:length], *islice(others, max(0, length - len(first)))]
    return [*spread, *left, *others]


def _share(items: Sequence[pytest.Item], number: int, shares: int) -> Sequence[pytest.Item]:
    """Return one of so many equal parts."""
    return items[len(items) * number // shares : len(items) * (number + 1) // shares]
