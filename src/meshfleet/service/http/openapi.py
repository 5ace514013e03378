"""Builds the OpenAPI document from the routes and the types of their requests and responses (rest-162)."""

from __future__ import annotations

import re
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar import Litestar
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from msgspec import UNSET

from meshfleet.rest.accounts import Role
from meshfleet.rest.bodies import ResponseBody
from meshfleet.rest.problems import PROBLEM_MEDIA_TYPE, Problem
from meshfleet.service.http.access import PUBLIC, REQUIRED_ROLES
from meshfleet.service.http.request import ApiRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from litestar import Router
    from litestar.handlers import HTTPRouteHandler

_BODY_STATUSES: Final = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
_STATUS_HEADERS: Final = {
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": {"schema": {"type": "string"}}},
    HTTPStatus.TOO_MANY_REQUESTS: {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}},
}
_RULE_NUMBERS: Final = re.compile(r" \((?:auth|id|rest)-[^)]*\)")
"""Pattern of rule numbers in docstrings, which are removed from the OpenAPI document."""

_DESCRIPTION: Final = (
    "Fleets of BLE-mesh devices behind MQTT gateways. Log in, then send `Authorization: Bearer TOKEN`. "
    "Within v1, fields and operations are only added: ignore fields you do not know."
)


def build_openapi_document(
    routes: Sequence[Router | HTTPRouteHandler], injected: Iterable[str], read: Mapping[str, Provide]
) -> dict[str, Any]:
    """Return the OpenAPI document of all REST routes.

    `injected` are the names of route arguments that do not come from the request, such as the database.
    `read` contains the providers of arguments that are parsed from the request.
    """
    app = Litestar(
        routes,
        dependencies={
            **{name: Provide(_build_placeholder(), sync_to_thread=False) for name in injected},
            **read,
        },
        request_class=ApiRequest,
        logging_config=None,
        openapi_config=OpenAPIConfig(
            title="Meshfleet",
            version=version("meshfleet"),
            description=_DESCRIPTION,
            use_handler_docstrings=True,
            operation_id_creator=_build_operation_id,
            components=Components(
                security_schemes={
                    "token": SecurityScheme(
                        type="http", scheme="bearer", description="An access token or an API key."
                    )
                }
            ),
        ),
    )
    handlers: dict[str, HTTPRouteHandler] = {
        f"{method} {route.path_format}": handler
        for route in app.routes
        for handler in getattr(route, "route_handlers", ())
        for method in handler.http_methods
    }
    text = msgspec.json.encode(app.openapi_schema.to_schema()).decode()
    document: dict[str, Any] = msgspec.json.decode(_RULE_NUMBERS.sub("", text))
    document["components"]["schemas"] |= _build_problem_schemas()
    _require_sent(document["components"]["schemas"], ResponseBody)
    _merge_numbers(document)
    for path, item in document["paths"].items():
        for method, operation in item.items():
            name = f"{method.upper()} {path}"
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
            _close_body(document, operation)
            operation["summary"] = operation["description"].partition(".")[0]
            required = REQUIRED_ROLES[name]
            operation["security"] = [] if required is PUBLIC else [{"token": []}]
            _add_problems(operation, required, handlers[name])
    return document


def _require_sent(schemas: dict[str, Any], family: type[ResponseBody]) -> None:
    """Mark each field that all responses contain as required in the schemas.

    The defaults of such fields exist only for REST clients that read responses of older services.
    """
    for kind in family.__subclasses__():
        if kind.__name__ in schemas:
            fields = msgspec.structs.fields(kind)
            sent = (each.encode_name for each in fields if each.default is not UNSET)
            schemas[kind.__name__]["required"] = sorted(sent)
        _require_sent(schemas, kind)


def _merge_numbers(schema: object) -> None:
    """Leave integers out of alternatives with numbers: a value must match exactly one of them."""
    if isinstance(schema, dict):
        kinds = schema.get("oneOf")
        if isinstance(kinds, list) and {"type": "number"} in kinds:
            schema["oneOf"] = [each for each in kinds if each != {"type": "integer"}]
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _merge_numbers(each)


def _close_body(document: dict[str, Any], operation: dict[str, Any]) -> None:
    """Declare that the JSON body of an operation must not contain unknown fields (rest-5)."""
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        reference: str = content["application/json"]["schema"]["$ref"]
        document["components"]["schemas"][reference.rpartition("/")[2]]["additionalProperties"] = False


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a query parameter without null: it may be absent but never null."""
    kinds = [each for each in schema.pop("oneOf", ()) if each != {"type": "null"}]
    return kinds[0] | schema if kinds else schema


def _build_operation_id(handler: HTTPRouteHandler, _method: object, _path: object) -> str:
    first, *others = handler.handler_name.split("_")
    return first + "".join(map(str.capitalize, others))


def _build_problem_schemas() -> dict[str, Any]:
    schemas = msgspec.json.schema_components([Problem], ref_template="#/components/schemas/{name}")[1]
    for each in schemas.values():
        each["description"] = _RULE_NUMBERS.sub("", each["description"])
    return schemas


def _build_placeholder() -> Callable[[], None]:
    """Return a new provider as a placeholder for an object of a running service.

    Each route argument needs its own provider: Litestar rejects one provider for two names.
    """
    return lambda: None


def _add_problems(operation: dict[str, Any], required: Role | None, handler: HTTPRouteHandler) -> None:
    """Add the problem responses of an operation, except statuses whose response the route declares itself."""
    problems = {*_iter_error_statuses(operation, required), *handler.opt.get("problems", ())}
    for status in sorted(problems - set(handler.responses or ())):
        operation["responses"][str(int(status))] = {
            "description": HTTPStatus(status).phrase,
            "headers": _STATUS_HEADERS.get(HTTPStatus(status), {}),
            "content": {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }


def _iter_error_statuses(operation: dict[str, Any], required: Role | None) -> Iterator[int]:
    """Yield the error statuses that follow from the operation's role, parameters and body."""
    yield HTTPStatus.BAD_REQUEST
    yield HTTPStatus.SERVICE_UNAVAILABLE
    if required is not PUBLIC:
        yield HTTPStatus.UNAUTHORIZED
        if required is not Role.VIEWER:
            yield HTTPStatus.FORBIDDEN
    if any(each["in"] == "path" for each in operation.get("parameters", ())):
        yield HTTPStatus.NOT_FOUND
    if "requestBody" in operation:
        yield from _BODY_STATUSES
