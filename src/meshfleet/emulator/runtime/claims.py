"""Claiming emulated gateways at a service over REST, to get their credentials for its broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import httpx
import msgspec
from msgspec.structs import replace

from meshfleet import rest
from meshfleet.emulator.runtime.http_download import read_body, redact_url
from meshfleet.errors import ServiceRefused
from meshfleet.errors.protocol import MalformedAddress, WireError
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.rest import GatewayClaim, LoggedIn, Login, NewGateway, ProblemSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from meshfleet.protocol.ids import Mac

_RESPONSE_TIMEOUT: Final = 60.0
"""Seconds for one answer as a whole; the client's own timeouts are for each part of it."""

_MAX_RESPONSE_BYTES: Final = 64 * 1024
"""Bytes of an answer."""

_DEFAULT_RETRY_SECONDS: Final = 1
"""Seconds, when the service wants us to wait and does not say how long."""

_MAX_RETRY_SECONDS: Final = 60
_MAX_ATTEMPTS: Final = 10

_MAX_QUOTED_CHARACTERS: Final = 200
"""Characters of the service's own words in an error."""


async def claim_gateways(  # noqa: PLR0913 # one call, and every part of it by its name
    service: str,
    *,
    user: str,
    password: str,
    gateways: Sequence[Mac],
    http: httpx.AsyncClient,
    concurrency: int = 20,
    on_claimed: Callable[[Mac], None] | None = None,
) -> list[tuple[Mac, BrokerAddress]]:
    """Claim gateways, and tell where and as whom each connects, in their order; one named twice comes once.

    A gateway that is claimed already gets a new password: whoever runs it elsewhere is cut off. `on_claimed`
    is called for each as it is done. Raises ServiceRefused at the first that fails; the others stay claimed.
    """
    if concurrency < 1:
        raise ValueError("concurrency must be more than nothing")
    desk = _ClaimClient(_parse_service_url(service), Login(username=user, password=password), http)
    found: dict[Mac, BrokerAddress | None] = dict.fromkeys(gateways)
    await desk.log_in(instead_of=None)
    waiting = iter(list(found))

    async def work() -> None:
        for gateway in waiting:
            found[gateway] = await desk.claim(gateway)
            if on_claimed is not None:
                on_claimed(gateway)

    await _run_concurrently([work() for _ in range(min(concurrency, len(found)))])
    return [(gateway, address) for gateway, address in found.items() if address is not None]


def _parse_service_url(service: str) -> httpx.URL:
    """Check the address of a service; a path in front of its own is allowed."""
    if not service.isprintable() or " " in service:
        raise MalformedAddress("service", "has a space or a control character in it")
    try:
        url = httpx.URL(service)
        host = url.host
    except (httpx.InvalidURL, UnicodeError):  # the latter for hosts that IDNA does not allow
        raise MalformedAddress("service", "is not a URL such as https://host") from None
    if url.scheme not in {"http", "https"} or not host:
        raise MalformedAddress("service", "must begin with http:// or https:// and a host")
    if url.userinfo:
        raise MalformedAddress("service", "has a user name or password in it, which are given apart")
    if url.query or url.fragment or "?" in service or "#" in service:
        raise MalformedAddress("service", "has a ? or # in it")
    return url


class _ClaimClient:
    """Where gateways are claimed: a service, and us logged in to it."""

    def __init__(self, base: httpx.URL, login: Login, http: httpx.AsyncClient) -> None:
        self._base = base
        self._prefix = base.path.rstrip("/")
        self._login = login
        self._http = http
        self._token: str | None = None
        self._login_lock = asyncio.Lock()

    async def log_in(self, *, instead_of: str | None) -> None:
        """Get a token, unless somebody else has replaced that one meanwhile."""
        async with self._login_lock:
            if self._token != instead_of:
                return
            response, body = await self._post(rest.LOGIN_PATH, self._login)
            if response.status_code == httpx.codes.UNAUTHORIZED:
                raise self._refusal("does not accept this user name and password")
            if response.status_code in {httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED}:
                raise self._refusal("is not a Meshfleet service: it has no login")
            self._token = self._decode_response(LoggedIn, response, body).auth_token

    async def claim(self, gateway: Mac) -> BrokerAddress:
        """Claim a gateway, or take it over."""
        response, body = await self._post_authenticated(rest.GATEWAYS_PATH, NewGateway(mac=gateway))
        if response.status_code == httpx.codes.CONFLICT:
            response, body = await self._post_authenticated(rest.credentials_path(gateway))
        claim = self._decode_response(GatewayClaim, response, body)
        if claim.mac != gateway:
            raise self._refusal(f"was asked for gateway {gateway} and answers for another")
        return self._address(claim)

    async def _post_authenticated(
        self, path: str, ask: rest.RequestBody | None = None
    ) -> tuple[httpx.Response, bytes]:
        """Ask as who we are. A token lives half an hour, and thousands of claims may take longer."""
        token = self._token
        response, body = await self._post(path, ask, token)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            await self.log_in(instead_of=token)
            response, body = await self._post(path, ask, self._token)
        return response, body

    async def _post(
        self, path: str, ask: rest.RequestBody | None, token: str | None = None
    ) -> tuple[httpx.Response, bytes]:
        """Post until the service has time for us."""
        headers = {"Accept": "application/json, application/problem+json", "Accept-Encoding": "identity"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if ask is not None:
            headers["Content-Type"] = "application/json"
        content = None if ask is None else msgspec.json.encode(ask)
        url = self._base.copy_with(path=self._prefix + path)
        for _ in range(_MAX_ATTEMPTS):
            request = self._http.build_request("POST", url, headers=headers, content=content)
            response, body = await self._send(request)
            if response.status_code != httpx.codes.TOO_MANY_REQUESTS:
                return response, body
            await asyncio.sleep(self._retry_seconds(response))
        raise self._refusal("has no time for us: it asks to wait again and again")

    async def _send(self, request: httpx.Request) -> tuple[httpx.Response, bytes]:
        """One question, one answer."""
        try:
            async with asyncio.timeout(_RESPONSE_TIMEOUT):
                response = await self._http.send(request, stream=True, auth=None, follow_redirects=False)
                try:
                    body = await read_body(response, max_bytes=_MAX_RESPONSE_BYTES)
                finally:
                    await response.aclose()
        except (TimeoutError, httpx.TimeoutException):
            problem = "does not answer in time"
        except httpx.ConnectError as exc:
            problem = f"cannot be reached: {exc}"
        except httpx.HTTPError:
            problem = "is not a Meshfleet service: it speaks no proper HTTP"
        else:
            if body is None:
                raise self._refusal("is not a Meshfleet service: its answers are too long")
            return response, body
        # Without its cause, which carries the request with password or token.
        raise self._refusal(problem) from None

    def _retry_seconds(self, response: httpx.Response) -> int:
        pause = rest.parse_retry_after(response.headers.get("Retry-After", ""))
        if pause is not None and pause > _MAX_RETRY_SECONDS:
            raise self._refusal(f"asks to wait {pause} s after too many tries; try again then")
        return _DEFAULT_RETRY_SECONDS if pause is None else pause

    def _decode_response(self, kind: type[rest.BodyT], response: httpx.Response, body: bytes) -> rest.BodyT:
        """What a good answer says; of any other, why it is none."""
        match response.status_code:
            case status if httpx.codes.is_redirect(status):
                raise self._refusal("redirects; give the address behind it instead")
            case httpx.codes.FORBIDDEN:
                raise self._refusal(f"lets only admins claim gateways, and {self._login.username!r} is none")
            case status if not httpx.codes.is_success(status):
                raise self._refusal(f"answers with HTTP status {status}{self._quote_problem(body)}")
        try:
            return rest.decode_body(kind, body)
        except WireError as problem:
            # The field alone: the rest of the sentence may repeat what was in it.
            raise self._refusal(
                f"is not a Meshfleet service: its answer has no proper {problem.field}"
            ) from None

    def _quote_problem(self, body: bytes) -> str:
        """What the service says of a problem, on one line, and not if it repeats our secrets."""
        try:
            problem = rest.decode_body(ProblemSummary, body)
        except WireError:
            return ""
        text = "".join(char for char in problem.detail or problem.title or "" if char.isprintable())
        secret = any(each and each in text for each in (self._login.password, self._token))
        return f": {text[:_MAX_QUOTED_CHARACTERS]}" if text and not secret else ""

    def _address(self, claim: GatewayClaim) -> BrokerAddress:
        broker = claim.broker
        host = f"[{broker.host}]" if ":" in broker.host else broker.host
        try:
            address = BrokerAddress.parse(f"{'mqtts' if broker.tls else 'mqtt'}://{host}:{broker.port}")
        except MalformedAddress as problem:
            raise self._refusal(f"names a broker for {claim.mac} whose address {problem.reason}") from problem
        if address.user is not None:
            raise self._refusal(f"names a broker for {claim.mac} with a user in its host")
        return replace(address, user=claim.username, password=claim.password)

    def _refusal(self, words: str) -> ServiceRefused:
        return ServiceRefused(f"{redact_url(self._base)} {words}")


async def _run_concurrently(deeds: Iterable[Coroutine[None, None, None]]) -> None:
    """Do all at once. The first that fails ends the others, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for number, deed in enumerate(deeds):
                tasks.create_task(deed, name=f"claims {number}")
    except ExceptionGroup as problems:
        raise problems.exceptions[0] from None
