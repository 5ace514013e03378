"""Loads the files of a whole run before pytest collects them, each worker from another one on.

pytest rewrites the assertions of a file when it is loaded first, and keeps the result for everybody. Workers
that go through a fresh clone side by side would each rewrite every file, which takes ten seconds of the
processor for each of them.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages

import pytest

import tests


def pytest_collection(session: pytest.Session) -> None:
    own: dict[str, object] = getattr(session.config, "workerinput", {})
    is_whole = not session.config.option.file_or_dir and not session.config.option.fast
    if own and is_whole:
        number, workers = int(str(own["workerid"]).removeprefix("gw")), int(str(own["workercount"]))
        names = [each.name for each in walk_packages(tests.__path__, "tests.") if ".test_" in each.name]
        start = len(names) * number // workers
        for name in (*names[start:], *names[:start]):
            # pytest tells about a file that fails or is skipped when it collects it.
            with suppress(Exception, pytest.fail.Exception, pytest.skip.Exception):
                import_module(name)
