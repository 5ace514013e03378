"""Requests: their bodies become typed values at the door, strictly."""

from __future__ import annotations

from typing import Any

from litestar import Request
from litestar.datastructures import State

from meshfleet.errors import UnsupportedMediaType
from meshfleet.service.accounts.model import Actor
from meshfleet.wire import rest

_JSON = {"application/json", ""}
"""Who does not say what it is means JSON: there is nothing else."""


class Asked(Request[Actor, Any, State]):
    """A request whose body is read by our own rules, which name the field of every mistake."""

    async def json(self) -> Any:
        """The body as the type that the route asks for (rest-1, rest-5)."""
        if self.content_type[0].lower() not in _JSON:
            raise UnsupportedMediaType("the body must be application/json")
        field = self.route_handler.parsed_data_field
        assert field is not None  # noqa: S101 # only routes with a body ask for it
        return rest.decode(field.annotation, await self.body())
