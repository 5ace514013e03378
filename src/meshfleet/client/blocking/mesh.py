"""`Mesh` for programs without an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.client.blocking.event_loop import EventLoopThread
from meshfleet.client.blocking.proxies import BlockingMethod, ContextProxy, IteratorMethod
from meshfleet.client.mesh import mesh

if TYPE_CHECKING:
    from pathlib import Path


class Mesh(ContextProxy[mesh.Mesh]):
    """Gateways on a broker, as `with Mesh("mqtt://user:password@host:1883") as mesh`.

    It is the same as `meshfleet.client.Mesh`, but that every method waits. Any number of threads may use it.
    """

    def __init__(self, url: str, *, prefix: str = "", tls_ca: Path | None = None) -> None:
        """`prefix` stands in front of all topics; `tls_ca` names who vouches for the broker."""
        super().__init__(mesh.Mesh(url, prefix=prefix, tls_ca=tls_ca), EventLoopThread("Mesh"))

    @property
    def rejected(self) -> int:
        """How many reports could not be read."""
        return self._target.rejected

    @property
    def pending(self) -> int:
        """How many requests wait for their answers."""
        return self._target.pending

    reports = IteratorMethod(mesh.Mesh.reports)
    end_session = BlockingMethod(mesh.Mesh.end_session)
    apiversion = BlockingMethod(mesh.Mesh.apiversion)
    read = BlockingMethod(mesh.Mesh.read)
    write = BlockingMethod(mesh.Mesh.write)
    ack = BlockingMethod(mesh.Mesh.ack)
    acknowledge = BlockingMethod(mesh.Mesh.acknowledge)
