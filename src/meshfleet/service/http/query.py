"""Query parameters of REST: names may have any case; unknown parameters are rejected (rest-3, rest-4)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.params import QueryParameter

from meshfleet.errors import Fault, InvalidRequest, quote_name
from meshfleet.errors.protocol import MalformedInput, MalformedPayload, MalformedText
from meshfleet.rest.inputs import DEFAULT_RESULTS, MAX_RESULTS, MIN_RESULTS, parse_max_results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from litestar import Request
    from litestar.exceptions import ValidationException
    from litestar.handlers import BaseRouteHandler
    from litestar.types import ASGIApp, Receive, Scope, Send
    from litestar.typing import FieldDefinition


# Query parameters that several lists share.

MaxResults = Annotated[
    str | None,
    QueryParameter(
        name="MaxResults",
        description=f"Maximum number of items on a page; {DEFAULT_RESULTS} by default.",
        schema_extra={"type": "integer", "minimum": MIN_RESULTS, "maximum": MAX_RESULTS},
    ),
]

NextToken = Annotated[
    str | None,
    QueryParameter(
        name="NextToken",
        description="The `nextToken` of the previous page, to get the next page. Use the same filters.",
        schema_extra={"type": "string"},
    ),
]

FromTime = Annotated[
    str | None,
    QueryParameter(
        name="From", description="Start of the time range, inclusive: ISO 8601, UTC if without offset."
    ),
]

ToTime = Annotated[
    str | None,
    QueryParameter(
        name="To", description="End of the time range, exclusive: ISO 8601, UTC if without offset."
    ),
]


def parse_limit(max_results: MaxResults = None) -> int:
    """Parse `MaxResults`, the maximum number of items on a page (rest-23). Raise `InvalidRequest`."""
    try:
        return DEFAULT_RESULTS if max_results is None else parse_max_results(max_results)
    except MalformedPayload as exc:
        raise InvalidRequest([Fault(exc.field, exc.reason)]) from None


# Parameters are parsed one after the other, and all their faults are reported together.

Value = TypeVar("Value")
Other = TypeVar("Other")


class QueryReader:
    """Parses query parameters and collects the faults of all invalid parameters."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def read(
        self, parse: Callable[[str, str], Value], text: str | None, field: str, *, default: Other
    ) -> Value | Other:
        """Parse a parameter. Return `default` if it is missing or invalid; add a fault if it is invalid."""
        try:
            return default if text is None else parse(text, field)
        except MalformedInput as exc:
            self.faults.append(Fault(field, exc.reason))
            return default

    def check_span(self, since: int | None, until: int | None) -> None:
        """Add a fault if the time `From` is not before `To`, unless there are other faults already."""
        if not self.faults and since is not None and until is not None and since >= until:
            self.faults.append(Fault("From", "must be before To"))

    def raise_faults(self) -> None:
        """Raise `InvalidRequest` with all collected faults, if there are any."""
        if self.faults:
            raise InvalidRequest(self.faults)


def build_choice_parser(known: Mapping[str, Value]) -> Callable[[str, str], Value]:
    """Return a parser of query parameters that accepts the keys of `known` and returns their values."""

    def parse_choice(text: str, field: str) -> Value:
        if text not in known:
            raise MalformedText(field, f"must be one of {', '.join(known)}")
        return known[text]

    return parse_choice


def parse_flag(text: str, field: str) -> bool:
    """Parse `true` or `false` in upper or lower case."""
    if text.lower() not in {"true", "false"}:
        raise MalformedText(field, "must be true or false")
    return text.lower() == "true"


class _Parameter(NamedTuple):
    """Query parameter: the argument of the route function, and the name that REST clients use."""

    argument: str
    name: str
    repeatable: bool


class QueryNameMiddleware(ASGIMiddleware):
    """Middleware that normalizes the case of query parameter names, and rejects unknown or repeated names.

    A misspelled filter must not select the whole fleet, and two values for one filter are ambiguous.
    """

    scopes = (ScopeType.HTTP,)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Normalize the query parameter names of a request and pass it on. Raise `InvalidRequest`."""
        if query := scope["query_string"]:
            known = {each.name.lower(): each for each in _list_parameters(scope["route_handler"])}
            scope["query_string"] = urlencode(_canonicalize_names(query, known)).encode("ascii")
        await next_app(scope, receive, send)


def list_invalid_query_parameters(request: Request[Any, Any, Any], error: ValidationException) -> list[Fault]:
    """Return the faults of a Litestar validation error, with the parameter names that REST clients use."""
    names = {each.argument: each.name for each in _list_parameters(request.route_handler)}
    details = error.extra if isinstance(error.extra, list) else []
    return [
        Fault(names[each["key"]], each["message"])
        if each.get("key") in names
        else Fault("body", "is missing")
        for each in details
    ]


def _canonicalize_names(query: bytes, known: Mapping[str, _Parameter]) -> list[tuple[str, str]]:
    """Return the parameters of a query with the names that the route has; `known` has them in lower case.

    Raise `InvalidRequest` for unknown or repeated names.
    """
    try:
        given = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except UnicodeError:
        raise InvalidRequest([Fault("query", "is not percent-encoded UTF-8")]) from None
    faults, canonical, seen = [], [], set()
    for name, value in given:
        parameter = known.get(name.lower())
        if parameter is None:
            faults.append(Fault(quote_name(name), "is not a parameter of this operation"))
        elif "\0" in value:
            faults.append(Fault(parameter.name, "contains a NUL character"))
        elif parameter in seen and not parameter.repeatable:
            faults.append(Fault(parameter.name, "is given more than once"))
        else:
            seen.add(parameter)
            canonical.append((parameter.name, value))
    if faults:
        raise InvalidRequest(faults)
    return canonical


@cache
def _list_parameters(handler: BaseRouteHandler) -> tuple[_Parameter, ...]:
    """Return the query parameters of a route, including those of its dependencies."""
    return tuple(_iter_parameters(handler.parsed_fn_signature.parameters, handler))


def _iter_parameters(
    fields: Mapping[str, FieldDefinition], handler: BaseRouteHandler
) -> Iterator[_Parameter]:
    providers = handler.resolve_dependencies()
    for argument, field in fields.items():
        if isinstance(field.kwarg_definition, QueryParameter):
            yield _Parameter(argument, field.kwarg_definition.name or argument, _is_repeatable(field))
        elif argument in providers:
            yield from _iter_parameters(providers[argument].parsed_fn_signature.parameters, handler)


def _is_repeatable(field: FieldDefinition) -> bool:
    return field.is_non_string_sequence or any(each.is_non_string_sequence for each in field.inner_types)
