"""Claims emulated gateways at a service over REST. A claim returns MQTT credentials of the gateway."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import httpx
import msgspec
from msgspec.structs import replace

from meshfleet.emulator.runtime.http_download import read_body, redact_url
from meshfleet.errors import ServiceRefused
from meshfleet.errors.protocol import MalformedAddress, MalformedInput
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.rest.accounts import LoggedIn, Login
from meshfleet.rest.bodies import BodyT, RequestBody, decode_body
from meshfleet.rest.gateways import GatewayClaim, NewGateway
from meshfleet.rest.inputs import parse_retry_after
from meshfleet.rest.paths import GATEWAYS_PATH, LOGIN_PATH, credentials_path
from meshfleet.rest.problems import ProblemSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from meshfleet.protocol.ids import Mac

_MAX_RESPONSE_BYTES: Final = 64 * 1024
"""Maximum size of an HTTP response body in bytes."""

_DEFAULT_RETRY_SECONDS: Final = 1
"""Seconds to wait if the service limits the request rate (status 429) without a Retry-After header."""

_MAX_RETRY_SECONDS: Final = 60
"""Maximum seconds of a Retry-After header for which a request is repeated."""
_MAX_ATTEMPTS: Final = 10
"""Maximum number of attempts of one request while the service limits the request rate."""

_MAX_QUOTED_CHARACTERS: Final = 200
"""Maximum number of characters that an error message quotes from a response of the service."""


class ClaimedGateway(NamedTuple):
    """Gateway that was claimed at a service."""

    mac: Mac
    address: BrokerAddress
    """Address of the MQTT broker, with the credentials of the gateway."""


async def claim_gateways(  # noqa: PLR0913 # all but the first are keyword-only
    service: str,
    *,
    user: str,
    password: str,
    gateways: Sequence[Mac],
    http: httpx.AsyncClient,
    concurrency: int = 20,
    response_timeout: float = 60.0,
    on_claimed: Callable[[Mac], None] | None = None,
) -> list[ClaimedGateway]:
    """Claim gateways at a service. Return each gateway once, in the given order.

    A gateway that is already claimed gets a new password, which disconnects MQTT clients with the old
    password. `response_timeout` limits the seconds of one HTTP exchange; the timeout of the HTTP client does
    not apply. `on_claimed` is called after each claim. Raise `ServiceRefused` at the first failure; gateways
    claimed before the failure stay claimed.
    """
    if concurrency < 1:
        raise ValueError("concurrency must be at least 1")
    login = Login(username=user, password=password)
    client = _ClaimClient(_parse_service_url(service), login, http, response_timeout)
    addresses: dict[Mac, BrokerAddress | None] = dict.fromkeys(gateways)
    await client.log_in(expired_token=None)
    remaining = iter(list(addresses))

    async def claim_remaining() -> None:
        for gateway in remaining:
            addresses[gateway] = await client.claim(gateway)
            if on_claimed is not None:
                on_claimed(gateway)

    await _run_concurrently([claim_remaining() for _ in range(min(concurrency, len(addresses)))])
    return [ClaimedGateway(mac, address) for mac, address in addresses.items() if address is not None]


def _parse_service_url(service: str) -> httpx.URL:
    """Parse the base URL of a service, perhaps with a path. Raise `MalformedAddress` if it is invalid."""
    if not service.isprintable() or " " in service:
        raise MalformedAddress("service", "must not contain spaces or control characters")
    try:
        url = httpx.URL(service)
        host = url.host
    except (httpx.InvalidURL, UnicodeError):  # UnicodeError: host names that IDNA does not allow
        raise MalformedAddress("service", "is not a URL such as https://host") from None
    if url.scheme not in {"http", "https"} or not host:
        raise MalformedAddress("service", "must begin with http:// or https:// and a host")
    if url.userinfo:
        raise MalformedAddress(
            "service", "must not contain a user name or password, use the options for them"
        )
    if url.query or url.fragment or "?" in service or "#" in service:
        raise MalformedAddress("service", "must not contain ? or #")
    return url


class _ClaimClient:
    """REST client of one service that is logged in as one user and claims gateways."""

    def __init__(
        self, base: httpx.URL, login: Login, http: httpx.AsyncClient, response_timeout: float
    ) -> None:
        self._base = base
        self._prefix = base.path.rstrip("/")
        self._login = login
        self._http = http
        self._response_timeout = response_timeout
        self._token: str | None = None
        self._login_lock = asyncio.Lock()

    async def log_in(self, *, expired_token: str | None) -> None:
        """Log in and store an access token, unless another task has already replaced `expired_token`."""
        async with self._login_lock:
            if self._token != expired_token:
                return
            response, body = await self._post(LOGIN_PATH, self._login)
            if response.status_code == httpx.codes.UNAUTHORIZED:
                raise self._build_error("does not accept this user name and password")
            if response.status_code in {httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED}:
                raise self._build_error("is not a Meshfleet service: it has no login endpoint")
            self._token = self._decode_response(LoggedIn, response, body).auth_token

    async def claim(self, gateway: Mac) -> BrokerAddress:
        """Claim a gateway, or renew the password of a claimed gateway. Return the MQTT broker address."""
        response, body = await self._post_authenticated(GATEWAYS_PATH, NewGateway(mac=gateway))
        if response.status_code == httpx.codes.CONFLICT:
            response, body = await self._post_authenticated(credentials_path(gateway))
        claim = self._decode_response(GatewayClaim, response, body)
        if claim.mac != gateway:
            raise self._build_error(f"returned a claim of another gateway than {gateway}")
        return self._build_broker_address(claim)

    async def _post_authenticated(
        self, path: str, request_body: RequestBody | None = None
    ) -> tuple[httpx.Response, bytes]:
        """Send a POST request with the access token. If the token has expired, log in again and repeat."""
        token = self._token
        response, body = await self._post(path, request_body, token)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            await self.log_in(expired_token=token)
            response, body = await self._post(path, request_body, self._token)
        return response, body

    async def _post(
        self, path: str, request_body: RequestBody | None, token: str | None = None
    ) -> tuple[httpx.Response, bytes]:
        """Send a POST request, again while the service limits the request rate (HTTP status 429)."""
        headers = {"Accept": "application/json, application/problem+json", "Accept-Encoding": "identity"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if request_body is not None:
            headers["Content-Type"] = "application/json"
        content = None if request_body is None else msgspec.json.encode(request_body)
        url = self._base.copy_with(path=self._prefix + path)
        for _ in range(_MAX_ATTEMPTS):
            # A timeout of the client would end single steps of an exchange: httpx has 5 s as its default.
            request = self._http.build_request("POST", url, headers=headers, content=content, timeout=None)
            response, body = await self._send(request)
            if response.status_code != httpx.codes.TOO_MANY_REQUESTS:
                return response, body
            await asyncio.sleep(self._get_retry_seconds(response))
        raise self._build_error("keeps limiting the request rate; try again later")

    async def _send(self, request: httpx.Request) -> tuple[httpx.Response, bytes]:
        """Send one HTTP request. Return the response and its body."""
        try:
            async with asyncio.timeout(self._response_timeout):
                response = await self._http.send(request, stream=True, auth=None, follow_redirects=False)
                try:
                    body = await read_body(response, max_bytes=_MAX_RESPONSE_BYTES)
                finally:
                    await response.aclose()
        except (TimeoutError, httpx.TimeoutException):
            reason = "does not respond in time"
        except httpx.ConnectError as exc:
            reason = f"cannot be reached: {exc}"
        except httpx.HTTPError:
            reason = "is not a Meshfleet service: its response is not valid HTTP"
        else:
            if body is None:
                raise self._build_error("is not a Meshfleet service: its response is too long")
            return response, body
        # Drop the cause, which holds the request with the password or token.
        raise self._build_error(reason) from None

    def _get_retry_seconds(self, response: httpx.Response) -> int:
        """Return the seconds to wait after HTTP status 429. Raise `ServiceRefused` if they are too many."""
        seconds = parse_retry_after(response.headers.get("Retry-After", ""))
        if seconds is not None and seconds > _MAX_RETRY_SECONDS:
            raise self._build_error(f"limits the request rate; try again in {seconds} s")
        return _DEFAULT_RETRY_SECONDS if seconds is None else seconds

    def _decode_response(self, body_type: type[BodyT], response: httpx.Response, body: bytes) -> BodyT:
        """Decode the body of a successful HTTP response. Raise `ServiceRefused` for other responses."""
        match response.status_code:
            case status if httpx.codes.is_redirect(status):
                raise self._build_error("redirects; use the redirect target as the address")
            case httpx.codes.FORBIDDEN:
                raise self._build_error(
                    f"lets only admins claim gateways, and {self._login.username!r} is not an admin"
                )
            case status if not httpx.codes.is_success(status):
                raise self._build_error(f"returned HTTP status {status}{self._quote_problem(body)}")
        try:
            return decode_body(body_type, body)
        except MalformedInput as error:
            # Quote only the field name: the rest of the message may repeat the value.
            raise self._build_error(
                f"is not a Meshfleet service: its response has no valid {error.field}"
            ) from None

    def _quote_problem(self, body: bytes) -> str:
        """Return the error description in a response body as one line, or "" if it contains a secret."""
        try:
            problem = decode_body(ProblemSummary, body)
        except MalformedInput:
            return ""
        text = "".join(char for char in problem.detail or problem.title or "" if char.isprintable())
        repeats_secret = any(value and value in text for value in (self._login.password, self._token))
        return f": {text[:_MAX_QUOTED_CHARACTERS]}" if text and not repeats_secret else ""

    def _build_broker_address(self, claim: GatewayClaim) -> BrokerAddress:
        broker = claim.broker
        host = f"[{broker.host}]" if ":" in broker.host else broker.host
        try:
            address = BrokerAddress.parse(f"{'mqtts' if broker.tls else 'mqtt'}://{host}:{broker.port}")
        except MalformedAddress as error:
            raise self._build_error(
                f"returned a broker for {claim.mac} whose address {error.reason}"
            ) from error
        if address.user is not None:
            raise self._build_error(f"returned a broker for {claim.mac} with a user name in its host")
        return replace(address, user=claim.username, password=claim.password)

    def _build_error(self, reason: str) -> ServiceRefused:
        return ServiceRefused(f"{redact_url(self._base)} {reason}")


async def _run_concurrently(coroutines: Iterable[Coroutine[None, None, None]]) -> None:
    """Run coroutines concurrently. If one fails, cancel the others and raise its exception, not a group."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for number, coroutine in enumerate(coroutines):
                tasks.create_task(coroutine, name=f"claim worker {number}")
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
