"""Query parameters: read in any case, and none that is not known (rest-3, rest-4)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.params import QueryParameter

from meshfleet.errors import Fault, InvalidRequest, quote_name
from meshfleet.errors.protocol import MalformedPayload, MalformedText, WireError
from meshfleet.rest import DEFAULT_RESULTS, MAX_RESULTS, MIN_RESULTS, parse_max_results

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
        description=f"How many items a page may hold; {DEFAULT_RESULTS} unless set.",
        schema_extra={"type": "integer", "minimum": MIN_RESULTS, "maximum": MAX_RESULTS},
    ),
]

NextToken = Annotated[
    str | None,
    QueryParameter(
        name="NextToken",
        description="The `nextToken` of the page before, with the same filters.",
        schema_extra={"type": "string"},
    ),
]

FromTime = Annotated[
    str | None,
    QueryParameter(name="From", description="Not before this time: ISO 8601, UTC unless it says otherwise."),
]

ToTime = Annotated[
    str | None,
    QueryParameter(name="To", description="Before this time: ISO 8601, UTC unless it says otherwise."),
]


def parse_limit(max_results: MaxResults = None) -> int:
    """How many items a page may hold (rest-23)."""
    try:
        return DEFAULT_RESULTS if max_results is None else parse_max_results(max_results)
    except MalformedPayload as exc:
        raise InvalidRequest([Fault(exc.field, exc.reason)]) from None


# Parameters of a query, read one after the other: all that is wrong with them is told at once.

Value = TypeVar("Value")
Other = TypeVar("Other")


class QueryReader:
    """Reads parameters, and collects what is wrong with them."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def read(
        self, parse: Callable[[str, str], Value], text: str | None, field: str, *, unless: Other
    ) -> Value | Other:
        """The value of a parameter, `unless` there is none; what stands for a wrong one is never used."""
        try:
            return unless if text is None else parse(text, field)
        except WireError as exc:
            self.faults.append(Fault(field, exc.reason))
            return unless

    def check_span(self, since: int | None, until: int | None) -> None:
        """Look whether times follow each other as they should; of wrong ones there is enough to say."""
        if not self.faults and since is not None and until is not None and since >= until:
            self.faults.append(Fault("From", "is not before To"))

    def raise_faults(self) -> None:
        """Refuse the request if something is wrong with it."""
        if self.faults:
            raise InvalidRequest(self.faults)


def build_choice_parser(known: Mapping[str, Value]) -> Callable[[str, str], Value]:
    """Reads one of these words."""

    def parse(text: str, field: str) -> Value:
        if text not in known:
            raise MalformedText(field, f"is none of {', '.join(known)}")
        return known[text]

    return parse


def parse_flag(text: str, field: str) -> bool:
    """Read what is true or false, in any case."""
    if text.lower() not in {"true", "false"}:
        raise MalformedText(field, "is neither true nor false")
    return text.lower() == "true"


class _Parameter(NamedTuple):
    """A query parameter of a route."""

    argument: str
    name: str
    repeatable: bool


class QueryNameMiddleware(ASGIMiddleware):
    """Spells the names as our routes know them, and refuses what would be overlooked.

    A misspelt filter must not select the whole fleet, and of two values for one filter none is the right one.
    """

    scopes = (ScopeType.HTTP,)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Pass the request on."""
        if query := scope["query_string"]:
            known = {each.name.lower(): each for each in _list_parameters(scope["route_handler"])}
            scope["query_string"] = urlencode(_canonicalize(query, known)).encode("ascii")
        await next_app(scope, receive, send)


def list_query_faults(request: Request[Any, Any, Any], error: ValidationException) -> list[Fault]:
    """What is wrong with which parameter, by the names that clients use."""
    names = {each.argument: each.name for each in _list_parameters(request.route_handler)}
    found = error.extra if isinstance(error.extra, list) else []
    return [
        Fault(names[each["key"]], each["message"])
        if each.get("key") in names
        else Fault("body", "is missing")
        for each in found
    ]


def _canonicalize(query: bytes, known: Mapping[str, _Parameter]) -> list[tuple[str, str]]:
    try:
        given = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except UnicodeError:
        raise InvalidRequest([Fault("query", "is not UTF-8 in percent-encoding")]) from None
    wrong, spelt, seen = [], [], set()
    for name, value in given:
        parameter = known.get(name.lower())
        if parameter is None:
            wrong.append(Fault(quote_name(name), "is not a parameter here"))
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
def _list_parameters(handler: BaseRouteHandler) -> tuple[_Parameter, ...]:
    """All that a route takes, its dependencies included."""
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
