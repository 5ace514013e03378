"""`Fleet`: a Meshfleet service over REST, all of it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from meshfleet.client.names import seconds
from meshfleet.client.rest.address import Base
from meshfleet.client.rest.calls import Call
from meshfleet.client.rest.desk import Desk
from meshfleet.client.rest.devices import Devices
from meshfleet.client.rest.firmware import Firmware
from meshfleet.client.rest.gateways import Gateways
from meshfleet.client.rest.jobs import Jobs
from meshfleet.client.rest.labels import Labels
from meshfleet.client.rest.live import listen
from meshfleet.client.rest.operations import Operations
from meshfleet.client.rest.people import ApiKeys, Audit, Users
from meshfleet.client.rest.requests import Requests
from meshfleet.client.rest.samples import Samples
from meshfleet.client.rest.session import Credentials, Session
from meshfleet.client.rest.transport import Transport
from meshfleet.errors import LinkClosed, NotLoggedIn
from meshfleet.wire import rest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from pathlib import Path

    from meshfleet.client.rest.events import Event, EventType
    from meshfleet.wire.rest import Catalogue, Me


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
        self._transport = Transport(Base(place), tls_ca=tls_ca, timeout=seconds(timeout))
        self._credentials = Credentials(self._transport, user=user, password=password, token=token)
        self._desk = Desk(self._transport, self._credentials)
        self._is_entered = False
        self.devices = Devices(self._desk)
        self.labels = Labels(self._desk)
        self.gateways = Gateways(self._desk)
        self.samples = Samples(self._desk)
        self.requests = Requests(self._desk)
        self.firmware = Firmware(self._desk)
        self.jobs = Jobs(self._desk)
        self.users = Users(self._desk)
        self.api_keys = ApiKeys(self._desk)
        self.audit = Audit(self._desk)
        self.operations = Operations(self._desk)

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise LinkClosed("a Fleet is opened once: make another one")
        self._is_entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._credentials.close()
        await self._transport.close()

    def __repr__(self) -> str:
        return f"Fleet({str(self._transport.base)!r})"

    @property
    def session(self) -> Session | None:
        """The login as it is now, to be kept for later; None: we are not logged in."""
        token = self._credentials.token
        if token is None:
            return None
        return Session(url=str(self._transport.base), user=self._credentials.user, token=token)

    async def log_in(self) -> Session:
        """Log in now, and not when it is needed first."""
        token = await self._credentials.bearer()
        return Session(url=str(self._transport.base), user=self._credentials.user, token=token)

    async def log_out(self) -> None:
        """End the login: its tokens hold no longer. Who has a password logs in again when it is needed."""
        await self._credentials.settle()
        token = self._credentials.token
        if token is None:
            return
        with suppress(NotLoggedIn):  # then it has ended already
            await self._desk.ask_as(token, Call(method="POST", path=rest.LOGOUT))
        self._credentials.forget()

    async def me(self) -> Me:
        """Who we are to the service, and what we may do there."""
        return await self._desk.get(rest.Me, rest.ME)

    async def change_password(self, current: str, password: str) -> None:
        """Change one's own password. All other logins end."""
        await self._desk.tell("PUT", rest.OWN_PASSWORD, rest.NewPassword(current=current, password=password))
        self._credentials.change_password(password)

    async def catalogue(self) -> Catalogue:
        """What the service knows of identifiers and of products."""
        return await self._desk.get(rest.Catalogue, rest.CATALOGUE)

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
        return listen(self._desk, types, ids, gateway, jobs)
