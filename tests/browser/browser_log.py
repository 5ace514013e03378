"""What a browser has to say while somebody looks at the console: nothing, if all is well."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Request, WebError

_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) => {
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`);
});
"""

_SLOW = "WebSocket is closed before the connection is established"
"""A page gives a handshake up that takes too long, and tries again: a slow machine may need it."""


def _phrase(complaint: int | str) -> str:
    return complaint if isinstance(complaint, str) else f"the server responded with a status of {complaint} "


class BrowserLog:
    """Complaints of a context's pages, and requests that leave for another host."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self._host = urlsplit(url).netloc
        self.reset()
        context.add_init_script(_VIOLATIONS)
        context.on("console", self._console)
        context.on("weberror", self._error)
        context.on("request", self._request)
        context.on("requestfinished", self._end)
        context.on("requestfailed", self._end)

    def reset(self) -> None:
        """Forget all that was, for the next test."""
        self._messages: list[str] = []
        self._expected: list[str] = []
        self._allowed = [_SLOW]
        self.requests: list[str] = []
        """Everything that was asked for: the method, a blank, and the path with its query."""
        self.pending: set[Request] = set()
        """What nobody has answered yet."""

    def expect(self, *complaints: int | str) -> None:
        """Let a test provoke these: the status of a failed request, or part of a text. Each must come."""
        self._expected += map(_phrase, complaints)

    def allow(self, *complaints: int | str) -> None:
        """Let these come or not: what is said of a service that goes and comes depends on the moment."""
        self._allowed += map(_phrase, complaints)

    @property
    def unexpected(self) -> list[str]:
        """What nobody expected."""
        known = (*self._expected, *self._allowed)
        return [each for each in self._messages if not any(part in each for part in known)]

    @property
    def missing(self) -> list[str]:
        """What was expected, and never came."""
        return [part for part in self._expected if not any(part in each for each in self._messages)]

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self._messages.append(f"{message.type}: {message.text} ({message.location['url']})")

    def _error(self, error: WebError) -> None:
        self._messages.append(f"uncaught: {error.error}")

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"data", "blob"} and parts.netloc != self._host:
            self._messages.append(f"to another host: {request.url}")
        self.pending.add(request)
        self.requests.append(f"{request.method} {parts.path}{'?' + parts.query if parts.query else ''}")

    def _end(self, request: Request) -> None:
        self.pending.discard(request)
