"""Blocking `Mesh`: the client of gateways over MQTT for programs without an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.client.blocking.event_loop import EventLoopThread
from meshfleet.client.blocking.proxies import ContextProxy, wrap_generator, wrap_method
from meshfleet.client.mesh import mesh

if TYPE_CHECKING:
    from pathlib import Path


class Mesh(ContextProxy[mesh.Mesh]):
    """Gateways on an MQTT broker: `with Mesh("mqtt://user:password@host:1883") as mesh`.

    Has the methods of `meshfleet.client.Mesh`, but each method blocks until its result arrives. Several
    threads may use one object.
    """

    def __init__(self, url: str, *, prefix: str = "", tls_ca: Path | None = None) -> None:
        """Create a client. `prefix` is the MQTT topic prefix, `tls_ca` a PEM file of CA certificates."""
        super().__init__(mesh.Mesh(url, prefix=prefix, tls_ca=tls_ca), EventLoopThread("Mesh"))

    @property
    def rejected(self) -> int:
        """Number of received reports that could not be decoded."""
        return self._target.rejected

    @property
    def pending(self) -> int:
        """Number of sent requests that wait for responses of gateways."""
        return self._target.pending

    reports = wrap_generator(mesh.Mesh.reports)
    end_session = wrap_method(mesh.Mesh.end_session)
    apiversion = wrap_method(mesh.Mesh.apiversion)
    read = wrap_method(mesh.Mesh.read)
    write = wrap_method(mesh.Mesh.write)
    ack = wrap_method(mesh.Mesh.ack)
    acknowledge = wrap_method(mesh.Mesh.acknowledge)
