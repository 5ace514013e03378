"""Addresses that the service listens at."""

from __future__ import annotations

import errno
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from meshfleet.errors.startup import UnusableAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.settings import ListenAddress

_MAX_TRIED_PORTS: Final = 100
"""Ports that are tried one after the other."""

_PORT_COUNT: Final = 65536


@contextmanager
def open_listener(address: ListenAddress, option: str) -> Iterator[socket.socket]:
    """Take an address before anything else is done: who comes second finds out at once."""
    try:
        listener = _bind(address)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise UnusableAddress(
                f"cannot listen at {address}: port {address.port} is in use by another program; "
                f"choose another with --{option} HOST:PORT"
            ) from exc
        raise UnusableAddress(f"cannot listen at {address}: {exc.strerror}") from exc
    with listener:
        yield listener


def find_free_port(address: ListenAddress) -> ListenAddress:
    """Find the first port from this one on that is not in use; the same place if none of the next is free."""
    for port in range(address.port, min(address.port + _MAX_TRIED_PORTS, _PORT_COUNT)):
        candidate = address._replace(port=port)
        try:
            _bind(candidate).close()
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                break
        else:
            return candidate
    return address


def _bind(place: ListenAddress) -> socket.socket:
    host, port = place
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=both)
