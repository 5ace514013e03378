"""SIGHUP, which makes the service reload its settings: remembered until the service can reload them.

A hangup while the service starts would end the process otherwise.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from threading import Event
from typing import Final

_is_pending: Final = Event()


def remember_hangups() -> None:
    """Remember from now on that SIGHUP has arrived, instead of ending the process."""
    # Windows has no SIGHUP. A thread, as in tests, cannot set signal handlers.
    with suppress(AttributeError, ValueError):
        signal.signal(signal.SIGHUP, lambda *_: _is_pending.set())


def take_pending_hangup() -> bool:
    """Forget a remembered SIGHUP. Return False if there was none."""
    was_pending = _is_pending.is_set()
    _is_pending.clear()
    return was_pending
