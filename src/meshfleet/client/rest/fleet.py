"""`Fleet`: client of a Meshfleet service over REST."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from meshfleet.client.arguments import check_timeout
from meshfleet.client.rest.accounts import ApiKeys, Audit, Users
from meshfleet.client.rest.alarm_rules import AlarmRules
from meshfleet.client.rest.alarms import Alarms
from meshfleet.client.rest.channels import Channels
from meshfleet.client.rest.devices import Devices, Gateways, Labels
from meshfleet.client.rest.firmware import FirmwareImages
from meshfleet.client.rest.http_caller import HttpCaller, RestResource
from meshfleet.client.rest.http_messages import BaseUrl, HttpRequest
from meshfleet.client.rest.jobs import Jobs
from meshfleet.client.rest.live_events import subscribe_to_events
from meshfleet.client.rest.requests import Requests
from meshfleet.client.rest.samples import Samples
from meshfleet.client.rest.session import Credentials, Session
from meshfleet.client.rest.sites import Sites
from meshfleet.client.rest.transport import HttpTransport
from meshfleet.errors import NotLoggedIn
from meshfleet.errors.mqtt import ConnectionClosed
from meshfleet.rest.accounts import Me, NewPassword
from meshfleet.rest.catalogue import CATALOGUE_PATH, Catalogue
from meshfleet.rest.operations import Health, Ready, ReloadedSettings, Storage
from meshfleet.rest.paths import (
    ASYNCAPI_PATH,
    HEALTH_PATH,
    LOGOUT_PATH,
    ME_PATH,
    METRICS_PATH,
    OPENAPI_PATH,
    OWN_PASSWORD_PATH,
    READINESS_PATH,
    RELOAD_PATH,
    STORAGE_PATH,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from pathlib import Path

    from meshfleet.client.rest.live_events import Event, EventType


# `fleet.operations`: state of the service itself, and its API documents.


class Operations(RestResource):
    """Health, readiness, metrics, settings, disk use and API documents of a service.

    `metrics` needs a login; `storage` and `reload` need the role admin.
    """

    async def health(self) -> Health:
        """Check that the process of the service runs. Raise `ServiceUnreachable` if there is no response."""
        return self._caller.decode(Health, await self._caller.send_with_bearer(None, _build_get(HEALTH_PATH)))

    async def ready(self) -> Ready:
        """Check that the service is ready. Raise `Unavailable` with the reasons if it is not ready."""
        return self._caller.decode(
            Ready, await self._caller.send_with_bearer(None, _build_get(READINESS_PATH))
        )

    async def metrics(self) -> str:
        """Get the metrics of the service and the fleet in the Prometheus text format."""
        response = await self._caller.send(_build_get(METRICS_PATH, accept="text/plain"))
        return response.body.decode("utf-8", "replace")

    async def reload(self) -> ReloadedSettings:
        """Make the service read its settings again. Raise `WrongSettings`, without a change, if invalid."""
        return await self._caller.post(ReloadedSettings, RELOAD_PATH)

    async def storage(self) -> Storage:
        """Get the size of the service's data, its growth per day, and when the disk will be full."""
        return await self._caller.get(Storage, STORAGE_PATH)

    async def openapi(self) -> dict[str, Any]:
        """Get the OpenAPI 3.1 document of the REST API."""
        return self._caller.decode_json(await self._caller.send_with_bearer(None, _build_get(OPENAPI_PATH)))

    async def asyncapi(self) -> dict[str, Any]:
        """Get the AsyncAPI 3.0 document of the messaging interface."""
        return self._caller.decode_json(await self._caller.send_with_bearer(None, _build_get(ASYNCAPI_PATH)))


def _build_get(path: str, accept: str = "application/json") -> HttpRequest:
    return HttpRequest(method="GET", path=path, accept=accept, is_repeatable=True)


class Fleet:
    """Meshfleet service: `async with Fleet("https://fleet.example.org", user="me", password="…") as fleet`.

    Authenticate with `user` and `password`, with `token` (an API key or access token), or with `session` (a
    stored login). The first call that needs a login logs in; the access token is renewed automatically. An
    error response of the service raises an exception of `meshfleet.errors`. `ServiceUnreachable` means that
    no response arrived.

    After a lost connection, a call that only reads is repeated. A request to a device or for a new job is
    repeated too, because it has an idempotency key. Any other change is repeated only if the service cannot
    have received it.
    """

    def __init__(  # noqa: PLR0913 # keyword-only, all optional
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
        """Create a client of the service at `url`, without connecting.

        `tls_ca` is a PEM file of CA certificates. `timeout` is the number of seconds to wait for a response.
        """
        address = url if url is not None or session is None else session.url
        if address is None:
            raise ValueError("url or session is required")
        if session is not None:
            user, token = user or session.user, token or session.token
        if (user is None or password is None) and token is None and (user, password) != (None, None):
            raise ValueError("user and password must be given together")
        self._transport = HttpTransport(BaseUrl(address), tls_ca=tls_ca, timeout=check_timeout(timeout))
        self._credentials = Credentials(self._transport, user=user, password=password, token=token)
        self._caller = HttpCaller(self._transport, self._credentials)
        self._is_entered = False
        self.devices = Devices(self._caller)
        self.labels = Labels(self._caller)
        self.gateways = Gateways(self._caller)
        self.sites = Sites(self._caller)
        self.samples = Samples(self._caller)
        self.requests = Requests(self._caller)
        self.firmware = FirmwareImages(self._caller)
        self.jobs = Jobs(self._caller)
        self.alarms = Alarms(self._caller)
        self.alarm_rules = AlarmRules(self._caller)
        self.channels = Channels(self._caller)
        self.users = Users(self._caller)
        self.api_keys = ApiKeys(self._caller)
        self.audit = Audit(self._caller)
        self.operations = Operations(self._caller)

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise ConnectionClosed("a Fleet can be opened only once: create another one")
        self._is_entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._credentials.close()
        await self._transport.close()

    def __repr__(self) -> str:
        return f"Fleet({str(self._transport.base_url)!r})"

    @property
    def session(self) -> Session | None:
        """Current login, which a later `Fleet` accepts as argument `session`; None if not logged in."""
        token = self._credentials.token
        if token is None:
            return None
        return Session(url=str(self._transport.base_url), user=self._credentials.user, token=token)

    async def log_in(self) -> Session:
        """Log in at once, not at the first call that needs a login. Return the login, which can be stored."""
        token = await self._credentials.get_token()
        return Session(url=str(self._transport.base_url), user=self._credentials.user, token=token)

    async def log_out(self) -> None:
        """Log out and revoke the access token. If there is a password, the next call logs in again."""
        await self._credentials.wait_for_renewal()
        token = self._credentials.token
        if token is None:
            return
        with suppress(NotLoggedIn):  # the login has already ended
            await self._caller.send_with_bearer(token, HttpRequest(method="POST", path=LOGOUT_PATH))
        self._credentials.clear_token()

    async def me(self) -> Me:
        """Get the name and role of the account that is logged in."""
        return await self._caller.get(Me, ME_PATH)

    async def change_password(self, current: str, password: str) -> None:
        """Change the password of the user who is logged in. All other logins of the user end."""
        await self._caller.send_body(
            "PUT", OWN_PASSWORD_PATH, NewPassword(current=current, password=password)
        )
        self._credentials.change_password(password)

    async def catalogue(self) -> Catalogue:
        """Get the catalogue of identifiers and products."""
        return await self._caller.get(Catalogue, CATALOGUE_PATH)

    def live(
        self,
        types: EventType | Iterable[EventType] | None = None,
        ids: str | Iterable[str] | None = None,
        gateway: str | Iterable[str] | None = None,
        jobs: str | Iterable[str] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Iterate over live events of the fleet. Without filters, all events are received.

        An event must match all given filters: one of `types`, one of the device `ids`, one of the gateways,
        one of the jobs. After a lost connection, the iterator reconnects and continues with the next event. A
        `resync` event means that events were missed: read the current state again.
        """
        return subscribe_to_events(self._caller, types, ids, gateway, jobs)
