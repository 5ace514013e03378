"""HTTP requests to the URLs of channels.

A request goes to an address that `target_guard` has checked, on a new connection, without a proxy, and
redirects are not followed. Only the status and the headers of the response are read.
"""

from __future__ import annotations

import asyncio
import email.utils
import logging
import re
import ssl
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from meshfleet.errors import TargetForbidden
from meshfleet.errors.mqtt import UnusableCertificate
from meshfleet.service.notifications.delivery import DeliveryResult, Outcome
from meshfleet.service.notifications.message_text import to_one_line
from meshfleet.service.notifications.target_guard import TargetGuard, TargetUnresolved
from meshfleet.tls import create_tls_context

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from meshfleet.service.notifications.target_guard import Resolver, Target
    from meshfleet.settings.model import WebhookSettings

_log = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 15.0
"""Maximum number of seconds of an attempt: resolution, connection, request and response together."""
_CONNECT_SECONDS: Final = 5.0
"""Maximum number of seconds to connect to one of several addresses."""
_MAX_ADDRESSES: Final = 4
"""Maximum number of addresses of a host that are tried in one attempt."""
_MAX_RETRY_SECONDS: Final = 3600.0


class HttpSender:
    """HTTP client that sends one request to the URL of a channel. It never raises."""

    def __init__(
        self,
        settings: WebhookSettings,
        *,
        resolve: Resolver | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        """Create a client. `resolve` replaces the resolver of the system."""
        self._guard = TargetGuard(settings, resolve=resolve)
        self._authorities = settings.ca
        self._timeout = timeout
        self._context: ssl.SSLContext | None = None

    async def send(
        self,
        method: str,
        url: str,
        *,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
        now: int,
    ) -> DeliveryResult:
        """Send a request, and return how it went. `now` is the Unix time in milliseconds."""
        try:
            async with asyncio.timeout(self._timeout):
                if self._context is None:
                    self._context = await asyncio.to_thread(self._load_context)
                target = await self._guard.resolve_target(url)
                return await self._send_to(target, method, content, headers or {}, now)
        except TargetForbidden as exc:
            return fail_channel(str(exc))
        except TargetUnresolved:
            return fail_channel("the host of the URL cannot be resolved: check its name, and the DNS server")
        except UnusableCertificate as exc:
            return fail_channel(f"certificate authorities cannot be used ({exc.reason}): check webhooks.ca")
        except TimeoutError:
            return fail_channel(f"the receiver did not answer within {self._timeout:g} s: check that it runs")
        except Exception as exc:  # noqa: BLE001 # a defect must not stop other channels
            # Not the error itself: it may quote the URL.
            _log.error("request to a channel failed: internal error (%s)", type(exc).__name__)
            return fail_channel(f"internal error ({type(exc).__name__})")

    def _load_context(self) -> ssl.SSLContext:
        """Create the TLS context, and import the HTTP library: each would block the event loop for long."""
        import httpx  # noqa: F401, PLC0415

        _redact_urls_in_logs()
        context = create_tls_context()
        if self._authorities is not None:
            try:
                context.load_verify_locations(self._authorities)
            except OSError as exc:
                raise UnusableCertificate(str(self._authorities), exc.strerror or str(exc)) from exc
        return context

    async def _send_to(
        self, target: Target, method: str, content: bytes, headers: Mapping[str, str], now: int
    ) -> DeliveryResult:
        """Send a request to the first address of a host that accepts a connection."""
        import httpx  # noqa: PLC0415

        result = fail_channel("the receiver has no address")
        for address in target.addresses[:_MAX_ADDRESSES]:
            try:
                return await self._send_to_address(target, address, method, content, headers, now)
            except httpx.ConnectError as exc:
                result = fail_channel(_describe_connect_error(exc))
            except httpx.ConnectTimeout:
                result = fail_channel(
                    "the receiver does not accept connections (timeout): check its firewall"
                )
            except httpx.HTTPError as exc:
                return fail_channel(
                    f"the receiver closed the connection or did not speak HTTP ({type(exc).__name__}):"
                    " check its log"
                )
            except (httpx.InvalidURL, ValueError):
                return fail_channel("the URL cannot be used: set a valid URL")
        return result

    async def _send_to_address(  # noqa: PLR0913, PLR0917 # parts of a request
        self,
        target: Target,
        address: str,
        method: str,
        content: bytes,
        headers: Mapping[str, str],
        now: int,
    ) -> DeliveryResult:
        async with self._create_client(target) as client:
            request = client.build_request(
                method,
                target.build_url(address),
                content=content or None,
                headers={**headers, "Host": target.host_header},
                # Also the name that the certificate must have.
                extensions={"sni_hostname": target.host},
            )
            response = await client.send(request, stream=True)
            try:
                return _to_result(response.status_code, response.headers.get("Retry-After"), now)
            finally:
                await response.aclose()  # closes the connection, without reading the body

    def _create_client(self, target: Target) -> httpx.AsyncClient:
        """Create a client for one request: connections that are kept by address would mix hosts."""
        import httpx  # noqa: PLC0415

        assert self._context is not None  # noqa: S101 # loaded by `send`
        connect = _CONNECT_SECONDS if len(target.addresses) > 1 else None
        return httpx.AsyncClient(
            verify=self._context,
            trust_env=False,
            follow_redirects=False,
            http1=True,
            http2=False,
            timeout=httpx.Timeout(None, connect=connect),  # `send` limits the whole attempt
            headers={"User-Agent": f"Meshfleet/{_load_version()}", "Accept-Encoding": "identity"},
        )


class _UrlRedactionFilter(logging.Filter):
    """Reduces URLs in log lines of httpx to scheme and host: the rest may be a secret."""

    def filter(self, record: logging.LogRecord) -> bool:
        import httpx  # noqa: PLC0415

        if isinstance(record.args, tuple):
            record.args = tuple(
                f"{each.scheme}://{each.host}/…" if isinstance(each, httpx.URL) else each
                for each in record.args
            )
        return True


@cache
def _redact_urls_in_logs() -> None:
    logging.getLogger("httpx").addFilter(_UrlRedactionFilter())
    # At debug level httpcore logs the headers of responses.
    logging.getLogger("httpcore").setLevel(logging.INFO)


@cache
def _load_version() -> str:
    return version("meshfleet")


def fail_channel(problem: str) -> DeliveryResult:
    """Return the result of a delivery for which the channel is to blame."""
    return DeliveryResult(Outcome.CHANNEL_FAILED, problem=problem)


def _describe_connect_error(error: Exception) -> str:
    """Return why there was no connection, and what to do. The error has others as its causes."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"the certificate of the receiver is not trusted ({to_one_line(cause.verify_message)}): renew"
                " it, or set webhooks.ca to the file of its authority"
            )
        if isinstance(cause, ssl.SSLError):
            return "the TLS handshake failed: check the port of the URL, and the TLS versions of the receiver"
        if isinstance(cause, ConnectionRefusedError):
            return "the receiver refuses connections: check that it runs, and the port of the URL"
        cause = cause.__cause__ or cause.__context__
    return "the receiver cannot be reached: check the network, and that it runs"


_STATUS_PROBLEMS: Final = {
    HTTPStatus.UNAUTHORIZED: "refuses access: check the URL, and the key or secret at the receiver",
    HTTPStatus.FORBIDDEN: "refuses access: check the URL, and the key or secret at the receiver",
    HTTPStatus.NOT_FOUND: "does not know the URL: it may have been deleted there; set a new one",
    HTTPStatus.REQUEST_TIMEOUT: "did not get the message in time: check the network",
    HTTPStatus.TOO_MANY_REQUESTS: "gets too many messages: it is tried again later",
}
"""Statuses that say that the channel does not work, and what to do about it."""


def _to_result(status: int, retry_after: str | None, now: int) -> DeliveryResult:
    """Return the result that a status of HTTP means."""
    code = status // 100
    if code == 2:  # noqa: PLR2004 # the range of HTTP
        return DeliveryResult(Outcome.DELIVERED, status)
    outcome = Outcome.CHANNEL_FAILED
    if status == HTTPStatus.GONE:
        outcome = Outcome.CHANNEL_GONE
        text = "does not want messages any more: set a new URL, and turn the channel on again"
    elif status in _STATUS_PROBLEMS:
        text = _STATUS_PROBLEMS[HTTPStatus(status)]
    elif code == 3:  # noqa: PLR2004
        text = "redirects to another URL, which is not followed: set the URL to the final one"
    elif code == 4:  # noqa: PLR2004
        outcome = Outcome.MESSAGE_REFUSED
        text = "does not accept the message: check the format of the channel"
    else:
        text = "has an error of its own: check its log or its status page"
    return DeliveryResult(
        outcome, status, f"the receiver {text} (HTTP {status})", _parse_retry_after(retry_after, now)
    )


def _parse_retry_after(text: str | None, now: int) -> float | None:
    """Return the seconds in a header `Retry-After`, which has a number or a date, up to an hour."""
    if text is None:
        return None
    if re.fullmatch("[0-9]{1,9}", text):
        seconds = float(text)
    else:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - now / 1000
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), _MAX_RETRY_SECONDS)
