"""Order of the tests, so that the CPU is busy from the beginning of a run to its end.

`--dist worksteal` gives each worker an equally long sequence of tests; an idle worker takes tests from the
end of another sequence. So the first tests of a sequence stay with their worker. Every second worker begins
with the browser tests, which take longest, so that the others start neither a browser nor a demo fleet. One
of four begins with tests that mostly wait: run together they would leave the CPU idle.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

_BROWSER: Final = "tests/browser/"

_IDLE_DIRECTORIES: Final = (
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
"""Directories whose tests wait for three quarters of their time, as the table at the end of a run shows."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = int(getattr(config, "workerinput", {}).get("workercount", 1))
    if workers > 1:
        items[:] = _assign_sequences(items, workers)


def _assign_sequences(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Choose the first tests of each sequence, and fill it up with other tests."""
    browser = [item for item in items if item.nodeid.startswith(_BROWSER)]
    waiting = [item for directory in _IDLE_DIRECTORIES for item in items if item.nodeid.startswith(directory)]
    others = (item for item in items if not item.nodeid.startswith((_BROWSER, *_IDLE_DIRECTORIES)))
    ordered: list[pytest.Item] = []
    overflow: list[pytest.Item] = []
    for worker in range(workers):
        length = (len(items) - len(ordered)) // (workers - worker)
        first: Sequence[pytest.Item] = []
        if worker % 2 == 0:
            first = _share(browser, worker // 2, (workers + 1) // 2)
        elif worker % 4 == 1:
            first = _share(waiting, worker // 4, (workers + 2) // 4)
        overflow += first[length:]
        ordered += [*first[:length], *islice(others, max(0, length - len(first)))]
    return [*ordered, *overflow, *others]


def _share(items: Sequence[pytest.Item], number: int, shares: int) -> Sequence[pytest.Item]:
    """Return one of `shares` equal parts."""
    return items[len(items) * number // shares : len(items) * (number + 1) // shares]
