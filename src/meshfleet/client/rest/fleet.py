"""`Fleet`: a Meshfleet service over REST, all of it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from meshfleet import rest
from meshfleet.client.arguments import check_timeout
from meshfleet.client.rest.accounts import ApiKeys, Audit, Users
from meshfleet.client.rest.devices import Devices, Gateways, Labels
from meshfleet.client.rest.firmware import FirmwareImages
from meshfleet.client.rest.http_caller import HttpCaller
from meshfleet.client.rest.http_messages import BaseUrl, HttpRequest
from meshfleet.client.rest.jobs import Jobs
from meshfleet.client.rest.live_events import subscribe_to_events
from meshfleet.client.rest.requests import Requests
from meshfleet.client.rest.samples import Samples
from meshfleet.client.rest.session import Credentials, Session
from meshfleet.client.rest.transport import HttpTransport
from meshfleet.errors import NotLoggedIn
from meshfleet.errors.mqtt import LinkClosed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from pathlib import Path

    from meshfleet.client.rest.live_events import Event, EventType
    from meshfleet.rest import Catalogue, Health, Me, Ready


# `fleet.operations`: how the service itself is, and what it can do.


class Operations:
    """What those need who run a service. All but the figures is for everybody, and needs no login."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller

    async def health(self) -> Health:
        """Whether the process is up; it is, or this raises."""
        return self._caller.decode(
            rest.Health, await self._caller.send_as(None, _build_get(rest.HEALTH_PATH))
        )

    async def ready(self) -> Ready:
        """Ask whether the service does its work. Raise `Unavailable` with its reasons if it does not."""
        return self._caller.decode(
            rest.Ready, await self._caller.send_as(None, _build_get(rest.READINESS_PATH))
        )

    async def metrics(self) -> str:
        """Figures of the service and the fleet, as Prometheus reads them."""
        answer = await self._caller.send(_build_get(rest.METRICS_PATH, accept="text/plain"))
        return answer.body.decode("utf-8", "replace")

    async def openapi(self) -> dict[str, Any]:
        """All that can be asked over REST, as OpenAPI 3.1."""
        return self._caller.decode_json(await self._caller.send_as(None, _build_get(rest.OPENAPI_PATH)))

    async def asyncapi(self) -> dict[str, Any]:
        """All that can be published and subscribed to, as AsyncAPI 3.0."""
        return self._caller.decode_json(await self._caller.send_as(None, _build_get(rest.ASYNCAPI_PATH)))


def _build_get(path: str, accept: str = "application/json") -> HttpRequest:
    return HttpRequest(method="GET", path=path, accept=accept, is_repeatable=True)


class Fleet:
    """A service, as `async with Fleet("https://fleet.example.org", user="me", password="…") as fleet`.

    Who we are is told by `user` and `password`, by `token` (an API key, or a token), or by `session`, a login
    that was kept. We log in when that is needed first, and stay in. What the service refuses is raised as
    the same class of `meshfleet.errors` that it raised itself; if nobody answers, it is ServiceUnreachable.

    What only reads is asked again after a lost connection, and so are requests to devices and orders of jobs.
    Any other change is not, once it may have arrived.
    """

    def __init__(  # noqa: PLR0913 # by name, each may be left out
        self,
        url: str | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        session: Session | None = None,
        tls_ca: Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        """`tls_ca` names who vouches for the service; `timeout` is in seconds, for one answer."""
        place = url if url is not None or session is None else session.url
        if place is None:
            raise ValueError("a fleet needs the url of its service")
        if session is not None:
            user, token = user or session.user, token or session.token
        if (user is None or password is None) and token is None and (user, password) != (None, None):
            raise ValueError("a user needs a password, and a password a user")
        self._transport = HttpTransport(BaseUrl(place), tls_ca=tls_ca, timeout=check_timeout(timeout))
        self._credentials = Credentials(self._transport, user=user, password=password, token=token)
        self._caller = HttpCaller(self._transport, self._credentials)
        self._is_entered = False
        self.devices = Devices(self._caller)
        self.labels = Labels(self._caller)
        self.gateways = Gateways(self._caller)
        self.samples = Samples(self._caller)
        self.requests = Requests(self._caller)
        self.firmware = FirmwareImages(self._caller)
        self.jobs = Jobs(self._caller)
        self.users = Users(self._caller)
        self.api_keys = ApiKeys(self._caller)
        self.audit = Audit(self._caller)
        self.operations = Operations(self._caller)

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise LinkClosed("a Fleet is opened once: make another one")
        self._is_entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._credentials.close()
        await self._transport.close()

    def __repr__(self) -> str:
        return f"Fleet({str(self._transport.base_url)!r})"

    @property
    def session(self) -> Session | None:
        """The login as it is now, to be kept for later; None: we are not logged in."""
        token = self._credentials.token
        if token is None:
            return None
        return Session(url=str(self._transport.base_url), user=self._credentials.user, token=token)

    async def log_in(self) -> Session:
        """Log in now, and not when it is needed first."""
        token = await self._credentials.get_token()
        return Session(url=str(self._transport.base_url), user=self._credentials.user, token=token)

    async def log_out(self) -> None:
        """End the login: its tokens hold no longer. Who has a password logs in again when it is needed."""
        await self._credentials.wait_for_renewal()
        token = self._credentials.token
        if token is None:
            return
        with suppress(NotLoggedIn):  # then it has ended already
            await self._caller.send_as(token, HttpRequest(method="POST", path=rest.LOGOUT_PATH))
        self._credentials.clear_token()

    async def me(self) -> Me:
        """Who we are to the service, and what we may do there."""
        return await self._caller.get(rest.Me, rest.ME_PATH)

    async def change_password(self, current: str, password: str) -> None:
        """Change one's own password. All other logins end."""
        await self._caller.send_body(
            "PUT", rest.OWN_PASSWORD_PATH, rest.NewPassword(current=current, password=password)
        )
        self._credentials.change_password(password)

    async def catalogue(self) -> Catalogue:
        """What the service knows of identifiers and of products."""
        return await self._caller.get(rest.Catalogue, rest.CATALOGUE_PATH)

    def live(
        self,
        types: EventType | Iterable[EventType] | None = None,
        ids: str | Iterable[str] | None = None,
        gateway: str | Iterable[str] | None = None,
        jobs: str | Iterable[str] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """What happens in the fleet, as it happens: of these types, devices, gateways and jobs, or of all.

        It comes back by itself when the connection is lost, behind the last event that was told. What cannot
        be told again is said with a `resync`.
        """
        return subscribe_to_events(self._caller, types, ids, gateway, jobs)
