"""Authorization: the role that each REST route requires, and the middleware that checks the role."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from litestar.enums import ScopeType
from litestar.exceptions import MethodNotAllowedException
from litestar.middleware import ASGIMiddleware

from meshfleet.errors import NotAllowed, NotLoggedIn
from meshfleet.rest.accounts import Role
from meshfleet.rest.inputs import parse_bearer
from meshfleet.rest.operations import Forwarding

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from litestar import Litestar
    from litestar.types import ASGIApp, Receive, Scope, Send

    from meshfleet.service.actor import Actor

PUBLIC: Final = None
"""Value in `REQUIRED_ROLES` of a route that needs no authentication."""

_PEER: Final = "meshfleet.peer"

REQUIRED_ROLES: Final[Mapping[str, Role | None]] = {
    "POST /api/v1/auth/login": PUBLIC,
    "POST /api/v1/auth/refresh": Role.VIEWER,
    "POST /api/v1/auth/logout": Role.VIEWER,
    "GET /api/v1/auth/me": Role.VIEWER,
    "PUT /api/v1/auth/password": Role.VIEWER,
    "GET /api/v1/users": Role.ADMIN,
    "POST /api/v1/users": Role.ADMIN,
    "GET /api/v1/users/{username}": Role.ADMIN,
    "PUT /api/v1/users/{username}": Role.ADMIN,
    "DELETE /api/v1/users/{username}": Role.ADMIN,
    "GET /api/v1/api-keys": Role.ADMIN,
    "POST /api/v1/api-keys": Role.ADMIN,
    "DELETE /api/v1/api-keys/{key_id}": Role.ADMIN,
    "GET /api/v1/audit": Role.ADMIN,
    "GET /api/v1/devices": Role.VIEWER,
    "GET /api/v1/devices/summary": Role.VIEWER,
    "GET /api/v1/devices/{device_id}": Role.VIEWER,
    "DELETE /api/v1/devices/{device_id}": Role.ADMIN,
    "PUT /api/v1/devices/{device_id}/friendly-name": Role.OPERATOR,
    "PUT /api/v1/devices/{device_id}/labels/{label}": Role.OPERATOR,
    "DELETE /api/v1/devices/{device_id}/labels/{label}": Role.OPERATOR,
    "GET /api/v1/devices/{device_id}/connectivity": Role.VIEWER,
    "GET /api/v1/devices/{device_id}/holes": Role.VIEWER,
    "GET /api/v1/devices/{device_id}/links": Role.VIEWER,
    "GET /api/v1/devices/{device_id}/parents": Role.VIEWER,
    "GET /api/v1/devices/{device_id}/path": Role.VIEWER,
    "GET /api/v1/devices/{device_id}/samples": Role.VIEWER,
    "GET /api/v1/devices/{device_id}/series": Role.VIEWER,
    "GET /api/v1/devices/{device_id}/requests": Role.VIEWER,
    "POST /api/v1/devices/{device_id}/requests": Role.OPERATOR,
    "GET /api/v1/devices/{device_id}/updates": Role.VIEWER,
    "GET /api/v1/devices/{device_id}/position": Role.VIEWER,
    "GET /api/v1/devices/{device_id}/positions": Role.VIEWER,
    "GET /api/v1/devices/{device_id}/diagnosis": Role.VIEWER,
    "GET /api/v1/devices/{device_id}/place": Role.VIEWER,
    "PUT /api/v1/devices/{device_id}/place": Role.OPERATOR,
    "DELETE /api/v1/devices/{device_id}/place": Role.OPERATOR,
    "GET /api/v1/requests/{request_id}": Role.VIEWER,
    "GET /api/v1/labels": Role.VIEWER,
    "POST /api/v1/labels": Role.OPERATOR,
    "DELETE /api/v1/labels/{label}": Role.OPERATOR,
    "GET /api/v1/gateways": Role.VIEWER,
    "POST /api/v1/gateways": Role.ADMIN,
    "POST /api/v1/gateways/batch": Role.ADMIN,
    "GET /api/v1/gateways/{mac}": Role.VIEWER,
    "GET /api/v1/gateways/{mac}/topology": Role.VIEWER,
    "DELETE /api/v1/gateways/{mac}": Role.ADMIN,
    "POST /api/v1/gateways/{mac}/credentials": Role.ADMIN,
    "GET /api/v1/sites": Role.VIEWER,
    "POST /api/v1/sites": Role.OPERATOR,
    "GET /api/v1/sites/{site_id}": Role.VIEWER,
    "PUT /api/v1/sites/{site_id}": Role.OPERATOR,
    "DELETE /api/v1/sites/{site_id}": Role.OPERATOR,
    "GET /api/v1/sites/{site_id}/floors/{floor}/plan": Role.VIEWER,
    "PUT /api/v1/sites/{site_id}/floors/{floor}/plan": Role.OPERATOR,
    "DELETE /api/v1/sites/{site_id}/floors/{floor}/plan": Role.OPERATOR,
    "GET /api/v1/sites/{site_id}/positions": Role.VIEWER,
    "GET /api/v1/sites/{site_id}/nearest": Role.VIEWER,
    "GET /api/v1/sites/{site_id}/floors/{floor}/coverage": Role.VIEWER,
    "GET /api/v1/sites/{site_id}/survey": Role.VIEWER,
    "POST /api/v1/sites/{site_id}/survey": Role.OPERATOR,
    "DELETE /api/v1/sites/{site_id}/survey/{point_id}": Role.OPERATOR,
    "GET /api/v1/sites/{site_id}/survey/{point_id}": Role.VIEWER,
    "GET /api/v1/sites/{site_id}/survey/export": Role.VIEWER,
    "POST /api/v1/sites/{site_id}/survey/import": Role.OPERATOR,
    "GET /api/v1/sites/{site_id}/places": Role.VIEWER,
    "POST /api/v1/sites/{site_id}/places": Role.OPERATOR,
    "GET /api/v1/sites/{site_id}/zones": Role.VIEWER,
    "POST /api/v1/sites/{site_id}/zones": Role.OPERATOR,
    "GET /api/v1/sites/{site_id}/zones/{zone_id}": Role.VIEWER,
    "GET /api/v1/sites/{site_id}/zones/{zone_id}/visits": Role.VIEWER,
    "PUT /api/v1/sites/{site_id}/zones/{zone_id}": Role.OPERATOR,
    "DELETE /api/v1/sites/{site_id}/zones/{zone_id}": Role.OPERATOR,
    "GET /api/v1/attention": Role.VIEWER,
    "GET /api/v1/fleet/availability": Role.VIEWER,
    "GET /api/v1/fleet/connectivity": Role.VIEWER,
    "GET /api/v1/alarms/events": Role.VIEWER,
    "PUT /api/v1/alarms/seen": Role.VIEWER,
    "POST /api/v1/alarms/acknowledge": Role.OPERATOR,
    "GET /api/v1/alarms": Role.VIEWER,
    "GET /api/v1/alarms/{alarm_id}": Role.VIEWER,
    "GET /api/v1/alarms/{alarm_id}/members": Role.VIEWER,
    "GET /api/v1/alarms/{alarm_id}/events": Role.VIEWER,
    "POST /api/v1/alarms/{alarm_id}/acknowledge": Role.OPERATOR,
    "POST /api/v1/alarms/{alarm_id}/unacknowledge": Role.OPERATOR,
    "POST /api/v1/alarms/{alarm_id}/notes": Role.OPERATOR,
    "POST /api/v1/alarms/{alarm_id}/silence": Role.OPERATOR,
    "POST /api/v1/alarms/{alarm_id}/unsilence": Role.OPERATOR,
    "GET /api/v1/alarm-rules": Role.VIEWER,
    "POST /api/v1/alarm-rules": Role.OPERATOR,
    "POST /api/v1/alarm-rules/preview": Role.OPERATOR,
    "GET /api/v1/alarm-rules/{rule_id}": Role.VIEWER,
    "PUT /api/v1/alarm-rules/{rule_id}": Role.OPERATOR,
    "DELETE /api/v1/alarm-rules/{rule_id}": Role.OPERATOR,
    "POST /api/v1/alarm-rules/{rule_id}/reset": Role.ADMIN,
    "GET /api/v1/silences": Role.VIEWER,
    "POST /api/v1/silences": Role.OPERATOR,
    "GET /api/v1/silences/{silence_id}": Role.VIEWER,
    "PUT /api/v1/silences/{silence_id}": Role.OPERATOR,
    "DELETE /api/v1/silences/{silence_id}": Role.OPERATOR,
    "GET /api/v1/channels": Role.VIEWER,
    "POST /api/v1/channels": Role.ADMIN,
    "GET /api/v1/channels/{channel_id}": Role.VIEWER,
    "PUT /api/v1/channels/{channel_id}": Role.ADMIN,
    "DELETE /api/v1/channels/{channel_id}": Role.ADMIN,
    "POST /api/v1/channels/{channel_id}/test": Role.ADMIN,
    "POST /api/v1/channels/{channel_id}/secret": Role.ADMIN,
    "GET /api/v1/channels/{channel_id}/deliveries": Role.VIEWER,
    "POST /api/v1/channels/{channel_id}/deliveries/{delivery_id}/retry": Role.ADMIN,
    "POST /api/v1/channels/{channel_id}/retry-dead": Role.ADMIN,
    "GET /api/v1/alarm-routes": Role.VIEWER,
    "PUT /api/v1/alarm-routes": Role.ADMIN,
    "GET /api/v1/jobs": Role.VIEWER,
    "POST /api/v1/jobs": Role.OPERATOR,
    "GET /api/v1/jobs/{job_id}": Role.VIEWER,
    "DELETE /api/v1/jobs/{job_id}": Role.OPERATOR,
    "GET /api/v1/jobs/{job_id}/summary": Role.VIEWER,
    "GET /api/v1/jobs/{job_id}/executions": Role.VIEWER,
    "GET /api/v1/jobs/{job_id}/executions/{device_id}": Role.VIEWER,
    "POST /api/v1/jobs/{job_id}/apply": Role.OPERATOR,
    "POST /api/v1/jobs/{job_id}/pause": Role.OPERATOR,
    "POST /api/v1/jobs/{job_id}/resume": Role.OPERATOR,
    "POST /api/v1/jobs/{job_id}/cancel": Role.OPERATOR,
    "POST /api/v1/jobs/{job_id}/retry": Role.OPERATOR,
    "GET /api/v1/samples/export": Role.ADMIN,
    "GET /api/v1/rejects": Role.VIEWER,
    "GET /api/v1/catalogue": Role.VIEWER,
    "GET /api/v1/storage": Role.ADMIN,
    "GET /api/v1/firmware": Role.VIEWER,
    "POST /api/v1/firmware": Role.ADMIN,
    "GET /api/v1/firmware/{firmware_id}": Role.VIEWER,
    "DELETE /api/v1/firmware/{firmware_id}": Role.ADMIN,
    "GET /api/v1/firmware/{firmware_id}/image": Role.VIEWER,
    "POST /api/v1/firmware/{firmware_id}/release": Role.ADMIN,
    "POST /api/v1/firmware/{firmware_id}/withdraw": Role.ADMIN,
    "GET /api/v1/images/{token}/{file_name}": PUBLIC,
    "GET /api/v1/stream": Role.VIEWER,
    "POST /api/v1/reload": Role.ADMIN,
    "GET /api/v1/openapi.json": PUBLIC,
    "GET /api/v1/asyncapi.json": PUBLIC,
    "GET /healthz": PUBLIC,
    "GET /readyz": PUBLIC,
    "GET /metrics": Role.VIEWER,
}
"""Lowest role that may use each route, by method and path (auth-4, auth-16 to auth-18)."""


class AccessMiddleware(ASGIMiddleware):
    """Middleware that authenticates every request and checks the role of its user or API key."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, identify: Callable[[str, str | None], Awaitable[Actor]]) -> None:
        """`identify` returns the actor for an access token or API key, and the client's address."""
        self._identify = identify

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Set `scope["user"]` to the user or API key of the request, and pass the request on.

        Raise `NotLoggedIn` without valid credentials, and `NotAllowed` if the role is not sufficient.
        """
        method = scope.get("method")
        if method == "OPTIONS":  # Litestar's own response would not list all methods
            raise MethodNotAllowedException(headers={"allow": format_allow_header(scope["path_template"])})
        required = REQUIRED_ROLES[f"{method} {scope['path_template']}"]
        if required is not PUBLIC:
            actor = await self._identify(get_bearer(scope), get_client_address(scope))
            if not actor.role.includes(required):
                raise NotAllowed(f"requires the role {required}; your role is {actor.role}")
            scope["user"] = actor
        await next_app(scope, receive, send)


def check_required_roles(app: Litestar) -> None:
    """Raise `AssertionError` if `REQUIRED_ROLES` does not list exactly the routes of the application.

    Otherwise, a route without an entry would fail only on its first request.
    """
    routes = {
        f"{method} {route.path_format}"
        for route in app.routes
        for method in getattr(route, "methods", ())
        if method != "OPTIONS"
    }
    if routes != set(REQUIRED_ROLES):
        raise AssertionError(
            f"missing in REQUIRED_ROLES, or listed without a route: {routes ^ set(REQUIRED_ROLES)}"
        )


def format_allow_header(path: str) -> str:
    """Return the value of the header `Allow` for a path template: the methods of its routes."""
    methods = [method for method, _, each in (name.partition(" ") for name in REQUIRED_ROLES) if each == path]
    return ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])


def get_client_address(scope: Scope) -> str | None:
    """Return the IP address of an HTTP client, from trusted proxies if any; None if unknown (rest-169)."""
    client = scope["client"]
    try:
        address = ip_address(client[0] if client else "")
    except ValueError:  # a proxy may forward `unknown` or any text of its client
        return None
    # On a dual-stack socket an IPv4 client has an IPv4-mapped IPv6 address.
    return str(getattr(address, "ipv4_mapped", None) or address)


def remember_peer(scope: Scope) -> None:
    """Store the address of the TCP connection, before the address that a proxy reports replaces it."""
    scope[_PEER] = scope.get("client")  # type: ignore[typeddict-unknown-key] # a key of our own


def get_forwarding(scope: Scope) -> Forwarding:
    """Return whether `X-Forwarded-For` was absent in a request, ignored, or trusted (rest-169)."""
    if all(name != b"x-forwarded-for" for name, _ in scope["headers"]):
        return Forwarding.ABSENT
    is_replaced = scope["client"] is not scope.get(_PEER)
    return Forwarding.TRUSTED if is_replaced else Forwarding.IGNORED


def get_bearer(scope: Scope) -> str:
    """Return the access token or API key of a request. Raise `NotLoggedIn` if the request has neither."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    token = parse_bearer(values[0].decode("latin-1")) if len(values) == 1 else None
    if token is None:
        raise NotLoggedIn("send an access token or an API key as 'Authorization: Bearer TOKEN'")
    return token
