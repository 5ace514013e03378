"""Addresses that the service listens at."""

from __future__ import annotations

import errno
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from meshfleet.errors import UnusableAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.settings import Listen


@contextmanager
def listening(place: Listen, name: str) -> Iterator[socket.socket]:
    """Take an address before anything else is done: who comes second finds out at once."""
    host, port = place
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        both = host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=both)
    except OSError as exc:
        hint = f"; choose another with --{name} HOST:PORT" if exc.errno == errno.EADDRINUSE else ""
        raise UnusableAddress(f"cannot listen at {place}: {exc.strerror}{hint}") from exc
    with listener:
        yield listener
