"""Opens listening TCP sockets, and finds free ports."""

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
"""Maximum number of consecutive ports that `find_free_port` tries."""

_PORT_COUNT: Final = 65536


@contextmanager
def open_listener(address: ListenAddress, option: str) -> Iterator[socket.socket]:
    """Listen on a TCP address during the `with` block.

    Raise `UnusableAddress` if the address cannot be used; the message names `option`, the command-line option
    to change. Call this first at the start, so that a second service fails before it changes any data.
    """
    try:
        listener = _bind(address)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise UnusableAddress(
                f"cannot listen at {address}: port {address.port} is in use by another program; "
                f"choose another one with --{option} HOST:PORT"
            ) from exc
        raise UnusableAddress(f"cannot listen at {address}: {exc.strerror}") from exc
    with listener:
        yield listener


def find_free_port(address: ListenAddress) -> ListenAddress:
    """Return the address with the first free port from its own port on, or unchanged if none is found."""
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


def _bind(address: ListenAddress) -> socket.socket:
    """Create a TCP socket that listens on an address, on `::` for IPv4 too."""
    host, port = address
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    is_dual_stack = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=is_dual_stack)
