"""Query parameters: read in any case, and none that is not known (rest-3, rest-4)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.params import QueryParameter

from meshfleet.errors import Fault, InvalidRequest, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from litestar import Request
    from litestar.exceptions import ValidationException
    from litestar.handlers import BaseRouteHandler
    from litestar.types import ASGIApp, Receive, Scope, Send
    from litestar.typing import FieldDefinition


class _Parameter(NamedTuple):
    """A query parameter of a route."""

    argument: str
    name: str
    repeatable: bool


class QueryNames(ASGIMiddleware):
    """Spells the names as our routes know them, and refuses what would be overlooked.

    A misspelt filter must not select the whole fleet, and of two values for one filter none is the right one.
    """

    scopes = (ScopeType.HTTP,)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Pass the request on."""
        if query := scope["query_string"]:
            known = {each.name.lower(): each for each in _parameters(scope["route_handler"])}
            scope["query_string"] = urlencode(_spelt(query, known)).encode("ascii")
        await next_app(scope, receive, send)


def faults(request: Request[Any, Any, Any], error: ValidationException) -> list[Fault]:
    """What is wrong with which parameter, by the names that clients use."""
    names = {each.argument: each.name for each in _parameters(request.route_handler)}
    found = error.extra if isinstance(error.extra, list) else []
    return [
        Fault(names[each["key"]], each["message"])
        if each.get("key") in names
        else Fault("body", "is missing")
        for each in found
    ]


def _spelt(query: bytes, known: Mapping[str, _Parameter]) -> list[tuple[str, str]]:
    try:
        given = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except UnicodeError:
        raise InvalidRequest([Fault("query", "is not UTF-8 in percent-encoding")]) from None
    wrong, spelt, seen = [], [], set()
    for name, value in given:
        parameter = known.get(name.lower())
        if parameter is None:
            wrong.append(Fault(plain(name), "is not a parameter here"))
        elif "\0" in value:
            wrong.append(Fault(parameter.name, "has a NUL character in it"))
        elif parameter in seen and not parameter.repeatable:
            wrong.append(Fault(parameter.name, "is given more than once"))
        else:
            seen.add(parameter)
            spelt.append((parameter.name, value))
    if wrong:
        raise InvalidRequest(wrong)
    return spelt


@cache
def _parameters(handler: BaseRouteHandler) -> tuple[_Parameter, ...]:
    """All that a route takes, its dependencies included."""
    return tuple(_find(handler.parsed_fn_signature.parameters, handler))


def _find(fields: Mapping[str, FieldDefinition], handler: BaseRouteHandler) -> Iterator[_Parameter]:
    providers = handler.resolve_dependencies()
    for argument, field in fields.items():
        if isinstance(field.kwarg_definition, QueryParameter):
            yield _Parameter(argument, field.kwarg_definition.name or argument, _is_repeatable(field))
        elif argument in providers:
            yield from _find(providers[argument].parsed_fn_signature.parameters, handler)


def _is_repeatable(field: FieldDefinition) -> bool:
    return field.is_non_string_sequence or any(each.is_non_string_sequence for each in field.inner_types)
