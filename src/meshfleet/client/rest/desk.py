"""Asking a service as who we are. All rooms of the SDK ask here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from meshfleet.client.rest.calls import Answer, Call, secrets_in, written
from meshfleet.client.rest.problems import error_in
from meshfleet.errors import NotLoggedIn, ServiceRefused, WireError
from meshfleet.wire import rest

if TYPE_CHECKING:
    from meshfleet.client.rest.calls import Query
    from meshfleet.client.rest.session import Credentials
    from meshfleet.client.rest.transport import Stream, Transport

BodyT = TypeVar("BodyT", bound=rest.Body)


class Desk:
    """Where questions go out with a token that holds, and answers come in as what they are."""

    def __init__(self, transport: Transport, credentials: Credentials) -> None:
        self._transport = transport
        self.credentials = credentials

    async def get(self, kind: type[BodyT], path: str, query: Query = ()) -> BodyT:
        """Read something."""
        return self.read(kind, await self.ask(Call(method="GET", path=path, query=query, is_repeatable=True)))

    async def put(self, kind: type[BodyT], path: str, ask: rest.Ask | None = None) -> BodyT:
        """Change something."""
        return self.read(kind, await self.ask(_change("PUT", path, ask)))

    async def post(self, kind: type[BodyT], path: str, ask: rest.Ask | None = None) -> BodyT:
        """Make something."""
        return self.read(kind, await self.ask(_change("POST", path, ask)))

    async def delete(self, path: str) -> Answer:
        """Take something away."""
        return await self.ask(Call(method="DELETE", path=path))

    async def ask(self, call: Call) -> Answer:
        """Any question, of which the answer is a good one, or an error."""
        bearer = await self.credentials.bearer()
        answer = await self._transport.ask(call, bearer)
        if self._is_foreign(answer) and self.credentials.replace(bearer):
            answer = await self._transport.ask(call, await self.credentials.bearer())
        return self._good(answer, call)

    async def tell(self, method: str, path: str, ask: rest.Ask) -> None:
        """Change something of which nothing comes back."""
        await self.ask(_change(method, path, ask))

    async def ask_as(self, bearer: str | None, call: Call) -> Answer:
        """A question with this token and no other, or with none where everybody may ask."""
        return self._good(await self._transport.ask(call, bearer), call)

    async def open(self, call: Call, *, silence: float) -> Stream:
        """A question whose answer comes in pieces."""
        bearer = await self.credentials.bearer()
        answer = await self._transport.open(call, bearer, silence=silence)
        if isinstance(answer, Answer) and self._is_foreign(answer) and self.credentials.replace(bearer):
            answer = await self._transport.open(call, await self.credentials.bearer(), silence=silence)
        if isinstance(answer, Answer):
            raise self._error(answer)
        return answer

    def read(self, kind: type[BodyT], answer: Answer) -> BodyT:
        """What an answer says."""
        try:
            return rest.decode(kind, answer.body)
        except WireError as exc:
            field = exc.field
        # The field alone: the rest of the sentence may repeat what was in it.
        raise self.refusal(f"its answer has no proper {field}")

    def read_json(self, answer: Answer) -> dict[str, Any]:
        """What an answer says that is JSON, and nothing that we know more of."""
        try:
            return msgspec.json.decode(answer.body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        raise self.refusal("its answer is not JSON")

    def refusal(self, words: str) -> ServiceRefused:
        """That somebody answers who is no service of ours."""
        return ServiceRefused(f"{self._transport.base} is not a Meshfleet service: {words}")

    def _good(self, answer: Answer, call: Call) -> Answer:
        if not answer.is_good:
            raise self._error(answer, call.secrets)
        return answer

    def _error(self, answer: Answer, secrets: tuple[str, ...] = ()) -> Exception:
        return error_in(answer, str(self._transport.base), self.credentials.secrets + secrets)

    def _is_foreign(self, answer: Answer) -> bool:
        """Whether the token was not taken. A wrong password of somebody has the same status."""
        return answer.status == NotLoggedIn.http and isinstance(self._error(answer), NotLoggedIn)


def _change(method: str, path: str, ask: rest.Ask | None) -> Call:
    return Call(method=method, path=path, body=written(ask), secrets=secrets_in(ask))
