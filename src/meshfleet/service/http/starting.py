"""Answers HTTP requests while the service starts.

Database migrations may take minutes, and health probes must learn why the service is not ready.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

import msgspec

from meshfleet.errors import Unavailable
from meshfleet.errors.readiness import ReadinessCode
from meshfleet.rest.operations import Health, NotReady
from meshfleet.rest.paths import HEALTH_PATH, READINESS_PATH
from meshfleet.rest.problems import PROBLEM_MEDIA_TYPE
from meshfleet.service.http.middleware import SECURITY_HEADERS
from meshfleet.service.http.problems import encode_problem
from meshfleet.service.readiness import READINESS_TEXTS, build_reason

_JSON: Final = "application/json"
_RETRY_AFTER: Final = "2"
"""Value of the header `Retry-After` in seconds, while the service starts."""

_UNAVAILABLE: Final = HTTPStatus.SERVICE_UNAVAILABLE


async def answer_starting(scope: Any, _receive: Any, send: Any) -> None:
    """Answer an HTTP request: `/healthz` with 200, other paths with 503 and reason `starting` (rest-160)."""
    kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    status, media_type, body = _build_starting_response(scope["path"])
    headers = {
        **SECURITY_HEADERS,
        "content-type": media_type,
        "content-length": str(len(body)),
        "retry-after": _RETRY_AFTER,
    }
    await send(
        {
            "type": f"{kind}.start",
            "status": status,
            "headers": [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()],
        }
    )
    await send({"type": f"{kind}.body", "body": body, "more_body": False})
    # uvicorn logs an error if the application returns before a rejected WebSocket is disconnected.
    await asyncio.sleep(0)


def _build_starting_response(path: str) -> tuple[HTTPStatus, str, bytes]:
    if path == HEALTH_PATH:
        return HTTPStatus.OK, _JSON, msgspec.json.encode(Health(status="ok"))
    if path == READINESS_PATH:
        unready = NotReady(status="unavailable", reasons=(build_reason(ReadinessCode.STARTING),))
        return _UNAVAILABLE, _JSON, msgspec.json.encode(unready)
    problem = encode_problem(_UNAVAILABLE, Unavailable.code, READINESS_TEXTS[ReadinessCode.STARTING])
    return _UNAVAILABLE, PROBLEM_MEDIA_TYPE, problem
