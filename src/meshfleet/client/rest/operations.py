"""`fleet.operations`: how the service itself is, and what it can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshfleet.client.rest.calls import Call
from meshfleet.wire import rest

if TYPE_CHECKING:
    from meshfleet.client.rest.desk import Desk
    from meshfleet.wire.rest import Health, Ready


class Operations:
    """What those need who run a service. All but the figures is for everybody, and needs no login."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def health(self) -> Health:
        """Whether the process is up; it is, or this raises."""
        return self._desk.read(rest.Health, await self._desk.ask_as(None, _get(rest.HEALTH)))

    async def ready(self) -> Ready:
        """Ask whether the service does its work. Raise `Unavailable` with its reasons if it does not."""
        return self._desk.read(rest.Ready, await self._desk.ask_as(None, _get(rest.READINESS)))

    async def metrics(self) -> str:
        """Figures of the service and the fleet, as Prometheus reads them."""
        answer = await self._desk.ask(_get(rest.METRICS, accept="text/plain"))
        return answer.body.decode("utf-8", "replace")

    async def openapi(self) -> dict[str, Any]:
        """All that can be asked over REST, as OpenAPI 3.1."""
        return self._desk.read_json(await self._desk.ask_as(None, _get(rest.OPENAPI)))

    async def asyncapi(self) -> dict[str, Any]:
        """All that can be published and subscribed to, as AsyncAPI 3.0."""
        return self._desk.read_json(await self._desk.ask_as(None, _get(rest.ASYNCAPI)))


def _get(path: str, accept: str = "application/json") -> Call:
    return Call(method="GET", path=path, accept=accept, is_repeatable=True)
