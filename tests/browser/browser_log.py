"""Log of browser messages and requests; a test fails on messages that it does not expect."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Request, WebError

_LOG_POLICY_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) => {
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`);
});
"""

_SLOW_HANDSHAKE = "WebSocket is closed before the connection is established"
"""Message of a handshake that took too long. The page retries it, and a slow machine may need that."""


def _message_part(message: int | str) -> str:
    return message if isinstance(message, str) else f"the server responded with a status of {message} "


class BrowserLog:
    """Errors and warnings of the pages of a browser context, and their requests to other hosts."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self._host = urlsplit(url).netloc
        # The console asks regularly, and the disk of a busy machine may not answer the database for seconds.
        self._not_ready = f"503 (Service Unavailable) ({url}/readyz)"
        self.reset()
        context.add_init_script(_LOG_POLICY_VIOLATIONS)
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        context.on("request", self._on_request)
        context.on("requestfinished", self._on_request_end)
        context.on("requestfailed", self._on_request_end)

    def reset(self) -> None:
        """Clear the log for the next test."""
        self._messages: list[str] = []
        self._expected: list[str] = []
        self._allowed = [_SLOW_HANDSHAKE, self._not_ready]
        self.requests: list[str] = []
        """All requests: method, a blank, and the path with its query."""
        self.pending: set[Request] = set()
        """Requests without a response so far."""

    def expect(self, *messages: int | str) -> None:
        """Expect messages: the status of a failed request, or part of a text. Each must occur."""
        self._expected += map(_message_part, messages)

    def allow(self, *messages: int | str) -> None:
        """Allow messages that may occur depending on timing, such as those about a restarting service."""
        self._allowed += map(_message_part, messages)

    @property
    def unexpected(self) -> list[str]:
        """Messages that were neither expected nor allowed."""
        known = (*self._expected, *self._allowed)
        return [each for each in self._messages if not any(part in each for part in known)]

    @property
    def was_not_ready(self) -> bool:
        """Whether the service said that it was not ready."""
        return any(self._not_ready in each for each in self._messages)

    @property
    def missing(self) -> list[str]:
        """Expected messages that did not occur."""
        return [part for part in self._expected if not any(part in each for each in self._messages)]

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self._messages.append(f"{message.type}: {message.text} ({message.location['url']})")

    def _on_error(self, error: WebError) -> None:
        self._messages.append(f"uncaught: {error.error}")

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"data", "blob"} and parts.netloc != self._host:
            self._messages.append(f"to another host: {request.url}")
        self.pending.add(request)
        self.requests.append(f"{request.method} {parts.path}{'?' + parts.query if parts.query else ''}")

    def _on_request_end(self, request: Request) -> None:
        self.pending.discard(request)
