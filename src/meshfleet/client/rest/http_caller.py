"""Asking a service as who we are. All rooms of the SDK ask here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import msgspec

from meshfleet import rest
from meshfleet.client.rest.http_messages import HttpRequest, HttpResponse, encode_body, find_secrets
from meshfleet.client.rest.problems import decode_error
from meshfleet.errors import NotLoggedIn, ServiceRefused
from meshfleet.errors.protocol import WireError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from meshfleet.client.rest.http_messages import QueryParams
    from meshfleet.client.rest.session import Credentials
    from meshfleet.client.rest.transport import HttpTransport, ResponseStream


# Lists, page by page.

ItemT = TypeVar("ItemT")
ItemT_co = TypeVar("ItemT_co", covariant=True)


_MAX_EMPTY_PAGES: Final = 100
"""Pages in a row with nothing on them; a service that filters may have some."""


class ListPage(Protocol[ItemT_co]):
    """A part of a list, and the token for the next one (rest-16)."""

    @property
    def items(self) -> Sequence[ItemT_co]:
        """What is on this page."""

    @property
    def next_token(self) -> str | None:
        """None on the last page."""


async def iterate_items(
    caller: HttpCaller, kind: type[ListPage[ItemT]], path: str, query: QueryParams = ()
) -> AsyncGenerator[ItemT, None]:
    """All items of a list, of any length: a page is fetched when its first item is wanted."""
    size = ("MaxResults", str(rest.MAX_RESULTS))
    token: str | None = None
    empty = 0
    while True:
        place = () if token is None else (("NextToken", token),)
        # All our pages are bodies, too, which no type can say of them together.
        body = cast("type[rest.ResponseBody]", kind)
        page = cast("ListPage[ItemT]", await caller.get(body, path, (*query, size, *place)))
        for item in page.items:
            yield item
        if page.next_token is None:
            return
        empty = 0 if page.items else empty + 1
        if page.next_token == token or empty > _MAX_EMPTY_PAGES:
            raise caller.build_refusal("its list has no end")
        token = page.next_token


BodyT = TypeVar("BodyT", bound=rest.ResponseBody)


class HttpCaller:
    """Where questions go out with a token that holds, and answers come in as what they are."""

    def __init__(self, transport: HttpTransport, credentials: Credentials) -> None:
        self._transport = transport
        self.credentials = credentials

    async def get(self, kind: type[BodyT], path: str, query: QueryParams = ()) -> BodyT:
        """Read something."""
        return self.decode(
            kind, await self.send(HttpRequest(method="GET", path=path, query=query, is_repeatable=True))
        )

    async def put(self, kind: type[BodyT], path: str, body: rest.RequestBody | None = None) -> BodyT:
        """Change something."""
        return self.decode(kind, await self.send(_build_change("PUT", path, body)))

    async def post(self, kind: type[BodyT], path: str, body: rest.RequestBody | None = None) -> BodyT:
        """Make something."""
        return self.decode(kind, await self.send(_build_change("POST", path, body)))

    async def delete(self, path: str) -> HttpResponse:
        """Take something away."""
        return await self.send(HttpRequest(method="DELETE", path=path))

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Any question, of which the answer is a good one, or an error."""
        bearer = await self.credentials.get_token()
        answer = await self._transport.send(request, bearer)
        if self._is_token_rejected(answer) and self.credentials.discard_token(bearer):
            answer = await self._transport.send(request, await self.credentials.get_token())
        return self._check_success(answer, request)

    async def send_body(self, method: str, path: str, body: rest.RequestBody) -> None:
        """Change something of which nothing comes back."""
        await self.send(_build_change(method, path, body))

    async def send_as(self, bearer: str | None, request: HttpRequest) -> HttpResponse:
        """A question with this token and no other, or with none where everybody may ask."""
        return self._check_success(await self._transport.send(request, bearer), request)

    async def open_stream(self, request: HttpRequest, *, idle_timeout: float) -> ResponseStream:
        """A question whose answer comes in pieces."""
        bearer = await self.credentials.get_token()
        answer = await self._transport.open_stream(request, bearer, idle_timeout=idle_timeout)
        if (
            isinstance(answer, HttpResponse)
            and self._is_token_rejected(answer)
            and self.credentials.discard_token(bearer)
        ):
            answer = await self._transport.open_stream(
                request, await self.credentials.get_token(), idle_timeout=idle_timeout
            )
        if isinstance(answer, HttpResponse):
            raise self._to_error(answer)
        return answer

    def decode(self, kind: type[BodyT], response: HttpResponse) -> BodyT:
        """What an answer says."""
        try:
            return rest.decode_body(kind, response.body)
        except WireError as exc:
            field = exc.field
        # The field alone: the rest of the sentence may repeat what was in it.
        raise self.build_refusal(f"its answer has no proper {field}")

    def decode_json(self, response: HttpResponse) -> dict[str, Any]:
        """What an answer says that is JSON, and nothing that we know more of."""
        try:
            return msgspec.json.decode(response.body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        raise self.build_refusal("its answer is not JSON")

    def build_refusal(self, reason: str) -> ServiceRefused:
        """That somebody answers who is no service of ours."""
        return ServiceRefused(f"{self._transport.base_url} is not a Meshfleet service: {reason}")

    def _check_success(self, response: HttpResponse, request: HttpRequest) -> HttpResponse:
        if not response.is_success:
            raise self._to_error(response, request.secrets)
        return response

    def _to_error(self, response: HttpResponse, secrets: tuple[str, ...] = ()) -> Exception:
        return decode_error(response, str(self._transport.base_url), self.credentials.secrets + secrets)

    def _is_token_rejected(self, response: HttpResponse) -> bool:
        """Whether the token was not taken. A wrong password of somebody has the same status."""
        return response.status == NotLoggedIn.http and isinstance(self._to_error(response), NotLoggedIn)


def _build_change(method: str, path: str, body: rest.RequestBody | None) -> HttpRequest:
    return HttpRequest(method=method, path=path, body=encode_body(body), secrets=find_secrets(body))
