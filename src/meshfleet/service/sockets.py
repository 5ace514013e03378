"""Addresses that the service listens at."""

from __future__ import annotations

import errno
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from meshfleet.errors import UnusableAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.settings import Listen

_TRIED: Final = 100
"""Ports that are tried one after the other."""

_PORTS: Final = 65536


@contextmanager
def listening(place: Listen, name: str) -> Iterator[socket.socket]:
    """Take an address before anything else is done: who comes second finds out at once."""
    try:
        listener = _listen(place)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise UnusableAddress(
                f"cannot listen at {place}: port {place.port} is in use by another program; "
                f"choose another with --{name} HOST:PORT"
            ) from exc
        raise UnusableAddress(f"cannot listen at {place}: {exc.strerror}") from exc
    with listener:
        yield listener


def next_free(place: Listen) -> Listen:
    """Find the first port from this one on that is not in use; the same place if none of the next is free."""
    for port in range(place.port, min(place.port + _TRIED, _PORTS)):
        candidate = place._replace(port=port)
        try:
            _listen(candidate).close()
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                break
        else:
            return candidate
    return place


def _listen(place: Listen) -> socket.socket:
    host, port = place
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=both)
