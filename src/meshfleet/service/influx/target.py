"""HTTP client that writes lines to the server for samples: InfluxDB 1, 2 or 3, VictoriaMetrics or others."""

from __future__ import annotations

import base64
import re
import socket
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec

from meshfleet.tls import create_tls_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.settings.model import InfluxSettings

_TIMEOUT_SECONDS: Final = 10.0
_MAX_BODY_BYTES: Final = 100_000
_MAX_REASON_LENGTH: Final = 300

_REFUSED: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})
"""HTTP statuses that mean that the server will never accept at least one of the lines."""

_PARTIAL_WRITE: Final = "partial write"
"""Start of the error with which InfluxDB reports that it refused some lines and wrote all others."""
_DROPPED: Final = re.compile(r"dropped=([0-9]+)")
_UNPARSED: Final = "unable to parse"


class TargetUnavailable(Exception):
    """Raised if the server did not accept lines now, but may accept the same lines later."""


class WriteResult(NamedTuple):
    """Result of writing lines to the server."""

    refused: int = 0
    """Number of lines that the server will never accept; it has written all others."""
    reason: str = ""
    """Last error of the server; empty if it refused no line."""


class _Response(NamedTuple):
    status: int
    reason: str

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300  # noqa: PLR2004 # the range of HTTP


class InfluxTarget:
    """Writes lines to an InfluxDB-compatible server.

    Methods block the calling thread. Only one thread at a time may call `write`.
    """

    def __init__(self, settings: InfluxSettings, *, timeout: float = _TIMEOUT_SECONDS) -> None:
        """Create a client of the server at `settings.url`, without connecting.

        `timeout` is the maximum number of seconds to wait for the server.
        """
        assert settings.url is not None  # noqa: S101 # the caller exports samples only with a URL
        parts = urlsplit(settings.url)
        self._tls = create_tls_context(authorities=settings.ca) if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "", parts.port
        query = {"precision": "ns"}
        if settings.org:
            path, query = "/api/v2/write", {"org": settings.org, "bucket": settings.database, **query}
        else:
            path, query = "/write", {"db": settings.database, **query}
        self._path = f"{parts.path}{path}?{urlencode(query)}"
        self._headers = {"Content-Type": "text/plain; charset=utf-8", **_build_authorization(settings.token)}
        self._timeout = timeout
        self._connection: HTTPConnection | None = None
        self._is_closed = False

    def write(self, lines: Sequence[bytes]) -> WriteResult:
        """Write lines to the server, and return how many lines the server will never accept.

        Raise `TargetUnavailable` if the lines must be written again later. Some of them may be written
        already; a line that is written twice replaces itself.
        """
        result = self._write(lines)
        if result.refused == len(lines) > 1 and not result.reason.startswith(_PARTIAL_WRITE):
            # Rather a wrong address or setting than so many bad lines: no sample is given up for that.
            raise TargetUnavailable(f"refuses every line: {result.reason}")
        return result

    def check(self) -> None:
        """Raise `TargetUnavailable` if the server is away, or refuses the login or the database."""
        response = self._post(b"")
        # Without a line some servers answer that the body is empty, which they do after checking the login.
        if not response.is_success and response.status not in _REFUSED:
            raise TargetUnavailable(f"answers with HTTP status {response.status}: {response.reason}")

    def close(self) -> None:
        """Close the connection to the server. A `write` that runs in another thread soon fails."""
        self._is_closed = True
        if (connection := self._connection) is not None and connection.sock is not None:
            with suppress(OSError):  # closed by the server
                connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _write(self, lines: Sequence[bytes]) -> WriteResult:
        """Write lines. If the server writes none of them, write each half, to find the refused lines."""
        response = self._post(b"\n".join(lines))
        if response.is_success:
            return WriteResult()
        is_too_large = response.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        if response.status not in _REFUSED and not is_too_large:
            raise TargetUnavailable(f"answers with HTTP status {response.status}: {response.reason}")
        if response.reason.startswith(_PARTIAL_WRITE):
            return WriteResult(_count_dropped(response.reason, len(lines)), response.reason)
        if len(lines) == 1:
            return WriteResult(1, response.reason)
        # Other servers write nothing if one line is wrong: find that line.
        half = len(lines) // 2
        first = self._write(lines[:half])
        second = self._write(lines[half:])
        return WriteResult(first.refused + second.refused, second.reason or first.reason)

    def _post(self, body: bytes) -> _Response:
        """Send a POST request, on a new connection if the existing one fails."""
        if self._is_closed:
            raise TargetUnavailable("is not used any more")
        if self._connection is not None:
            # The server may have closed the idle connection, or be gone, which is noticed only now.
            with suppress(OSError, HTTPException):
                return self._post_on(self._connection, body)
        self._disconnect()
        try:
            self._connection = self._connect()
            return self._post_on(self._connection, body)
        except (OSError, HTTPException) as exc:
            self._disconnect()
            text = exc.strerror if isinstance(exc, OSError) and exc.strerror else type(exc).__name__
            raise TargetUnavailable(f"does not answer: {text}") from exc

    def _post_on(self, connection: HTTPConnection, body: bytes) -> _Response:
        connection.request("POST", self._path, body, self._headers)
        response = connection.getresponse()
        content = response.read(_MAX_BODY_BYTES)
        if not response.isclosed():
            self._disconnect()  # a longer body than that of any error
        return _Response(response.status, _extract_error(content))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> HTTPConnection:
        if self._tls is None:
            return HTTPConnection(self._host, self._port, timeout=self._timeout)
        return HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._tls)


def _build_authorization(token: str) -> dict[str, str]:
    if not token:
        return {}
    if ":" in token:  # a name and a password: InfluxDB 1 knows no tokens
        return {"Authorization": f"Basic {base64.b64encode(token.encode()).decode()}"}
    return {"Authorization": f"Token {token}"}


def _extract_error(content: bytes) -> str:
    """Return the error text in the body of a response, shortened and on one line."""
    text = content.decode("utf-8", "replace")
    with suppress(msgspec.MsgspecError):
        body = msgspec.json.decode(content)
        if isinstance(body, dict):
            text = str(body.get("error") or body.get("message") or text)
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    dropped = f" {found[0]}" if (found := _DROPPED.search(line[_MAX_REASON_LENGTH:])) else ""
    return line[:_MAX_REASON_LENGTH] + dropped


def _count_dropped(reason: str, line_count: int) -> int:
    """Return how many of `line_count` lines a partial write left out, as its error text `reason` says.

    The number after `dropped=` does not include lines that cannot be parsed; the text names each of these.
    """
    found = _DROPPED.search(reason)
    dropped = int(found[1]) if found else 0
    return min(line_count, max(1, dropped, reason.count(_UNPARSED)))
