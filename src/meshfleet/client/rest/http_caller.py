"""Authenticated REST calls to the service, for all classes of the SDK that use REST."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import msgspec

from meshfleet.client.rest.http_messages import HttpRequest, HttpResponse, encode_body, find_secrets
from meshfleet.client.rest.problems import decode_error
from meshfleet.errors import NotLoggedIn, ServiceRefused
from meshfleet.errors.protocol import MalformedInput
from meshfleet.rest.bodies import RequestBody, ResponseBody, decode_body
from meshfleet.rest.inputs import MAX_RESULTS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from meshfleet.client.rest.http_messages import QueryParams
    from meshfleet.client.rest.session import Credentials
    from meshfleet.client.rest.transport import HttpTransport, ResponseStream


ItemT = TypeVar("ItemT")
ItemT_co = TypeVar("ItemT_co", covariant=True)
BodyT = TypeVar("BodyT", bound=ResponseBody)
ResultT = TypeVar("ResultT")

_MAX_EMPTY_PAGES: Final = 100
"""Maximum number of successive empty pages of a list; a filtered list may have some empty pages."""


class ListPage(Protocol[ItemT_co]):
    """Page of a list in a REST response, with the token for the next page (rest-16)."""

    @property
    def items(self) -> Sequence[ItemT_co]:
        """Items on this page of the list."""

    @property
    def next_token(self) -> str | None:
        """Token with which to get the next page; None on the last page."""


class HttpCaller:
    """Sends REST requests with a valid access token, decodes responses, and raises errors of the service."""

    def __init__(self, transport: HttpTransport, credentials: Credentials) -> None:
        self._transport = transport
        self.credentials = credentials

    async def get(self, kind: type[BodyT], path: str, query: QueryParams = ()) -> BodyT:
        """Send GET and decode the response. The request is repeated after a lost connection."""
        return self.decode(
            kind, await self.send(HttpRequest(method="GET", path=path, query=query, is_repeatable=True))
        )

    async def iterate_items(
        self, kind: type[ListPage[ItemT]], path: str, query: QueryParams = ()
    ) -> AsyncGenerator[ItemT, None]:
        """Iterate over all items of a list. Each page is requested when its first item is needed."""
        size = ("MaxResults", str(MAX_RESULTS))
        token: str | None = None
        empty_pages = 0
        while True:
            position = () if token is None else (("NextToken", token),)
            # Every page class is also a response body, which the type of `kind` cannot express.
            body = cast("type[ResponseBody]", kind)
            page = cast("ListPage[ItemT]", await self.get(body, path, (*query, size, *position)))
            for item in page.items:
                yield item
            if page.next_token is None:
                return
            empty_pages = 0 if page.items else empty_pages + 1
            if page.next_token == token or empty_pages > _MAX_EMPTY_PAGES:
                raise self.build_refusal("its list does not end")
            token = page.next_token

    async def put(self, kind: type[BodyT], path: str, body: RequestBody | None = None) -> BodyT:
        """Send PUT and decode the response."""
        return self.decode(kind, await self.send_body("PUT", path, body))

    async def post(self, kind: type[BodyT], path: str, body: RequestBody | None = None) -> BodyT:
        """Send POST and decode the response."""
        return self.decode(kind, await self.send_body("POST", path, body))

    async def delete(self, path: str) -> HttpResponse:
        """Send DELETE and return the response."""
        return await self.send(HttpRequest(method="DELETE", path=path))

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request with the current access token. Raise the service's error for an error response.

        If the service rejects the token, log in again and repeat the request once.
        """
        response = await self._send_with_token(lambda bearer: self._transport.send(request, bearer))
        return self._check_success(response, request)

    async def send_body(self, method: str, path: str, body: RequestBody | None) -> HttpResponse:
        """Send a request with a JSON body, or without a body, and return the response."""
        return await self.send(
            HttpRequest(method=method, path=path, body=encode_body(body), secrets=find_secrets(body))
        )

    async def post_once(
        self,
        path: str,
        body: RequestBody | None,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        extra_timeout: float = 0.0,
    ) -> HttpResponse:
        """Send POST with an idempotency key, so that the service executes a repeated request only once."""
        request = HttpRequest(
            method="POST",
            path=path,
            body=encode_body(body),
            headers=(("Idempotency-Key", secrets.token_urlsafe(16)), *headers),
            is_repeatable=True,
            extra_timeout=extra_timeout,
            secrets=find_secrets(body),
        )
        return await self.send(request)

    async def send_with_bearer(self, bearer: str | None, request: HttpRequest) -> HttpResponse:
        """Send a request with this access token, or without a token if None. Never log in."""
        return self._check_success(await self._transport.send(request, bearer), request)

    async def open_stream(self, request: HttpRequest, *, idle_timeout: float) -> ResponseStream:
        """Send a request and return the response as a stream. Raise the error of an error response.

        `idle_timeout` is the maximum number of seconds between two chunks of the stream.
        """
        response = await self._send_with_token(
            lambda bearer: self._transport.open_stream(request, bearer, idle_timeout=idle_timeout)
        )
        if isinstance(response, HttpResponse):
            raise self._to_error(response)
        return response

    def decode(self, kind: type[BodyT], response: HttpResponse) -> BodyT:
        """Decode the body of a response. Raise `ServiceRefused` if the body is not of type `kind`."""
        try:
            return decode_body(kind, response.body)
        except MalformedInput as exc:
            field = exc.field
        # Only the name of the field: the text of the error may quote the value.
        raise self.build_refusal(f"the response has no valid {field}")

    def decode_json(self, response: HttpResponse) -> dict[str, Any]:
        """Decode the body of a response as a JSON object. Raise `ServiceRefused` if it is no JSON object."""
        try:
            return msgspec.json.decode(response.body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        raise self.build_refusal("the response is not a JSON object")

    def build_refusal(self, reason: str) -> ServiceRefused:
        """Build the error for a response that cannot come from a Meshfleet service."""
        return ServiceRefused(f"{self._transport.base_url} is not a Meshfleet service: {reason}")

    async def _send_with_token(self, send: Callable[[str], Awaitable[ResultT]]) -> ResultT:
        """Send a request with the access token, and again with a new token if the token is rejected."""
        bearer = await self.credentials.get_token()
        response = await send(bearer)
        if (
            isinstance(response, HttpResponse)
            and self._is_token_rejected(response)
            and self.credentials.discard_token(bearer)
        ):
            response = await send(await self.credentials.get_token())
        return response

    def _check_success(self, response: HttpResponse, request: HttpRequest) -> HttpResponse:
        """Return a successful response. Raise the service's error for an error response."""
        if not response.is_success:
            raise self._to_error(response, request.secrets)
        return response

    def _to_error(self, response: HttpResponse, known_secrets: tuple[str, ...] = ()) -> Exception:
        return decode_error(response, str(self._transport.base_url), self.credentials.secrets + known_secrets)

    def _is_token_rejected(self, response: HttpResponse) -> bool:
        """Return whether a response says that the service rejects the access token.

        The HTTP status is not enough: a wrong password in the request body leads to status 401 too.
        """
        return response.status == NotLoggedIn.http and isinstance(self._to_error(response), NotLoggedIn)


class RestResource:
    """Base class of `fleet.devices`, `fleet.jobs` and so on, whose methods send REST requests."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller
