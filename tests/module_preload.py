"""Import of all test files before pytest collects them, in a different order for each worker.

pytest rewrites the assertions of a file when it is first imported, and caches the result for all workers.
Workers that import the files of a fresh clone in the same order would each rewrite every file, which takes
ten seconds of CPU time each.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages

import pytest

import tests


def pytest_collection(session: pytest.Session) -> None:
    worker: dict[str, object] = getattr(session.config, "workerinput", {})
    is_whole = not session.config.option.file_or_dir and not session.config.option.fast
    if worker and is_whole:
        number, workers = int(str(worker["workerid"]).removeprefix("gw")), int(str(worker["workercount"]))
        names = [each.name for each in walk_packages(tests.__path__, "tests.") if ".test_" in each.name]
        start = len(names) * number // workers
        for name in (*names[start:], *names[:start]):
            # pytest reports a file that fails or is skipped when it collects the file.
            with suppress(Exception, pytest.fail.Exception, pytest.skip.Exception):
                import_module(name)
