"""The REST interface, put together: the routes, and all that they share."""

from functools import cache
from typing import Any, Final, NamedTuple

from argon2 import PasswordHasher
from litestar import Litestar, get
from litestar.di import Provide

from meshfleet.db import Database
from meshfleet.db.samples import SampleStore
from meshfleet.service import clock
from meshfleet.service.accounts import key_routes, people_routes
from meshfleet.service.accounts import routes as account_routes
from meshfleet.service.accounts.gatekeeper import Gatekeeper
from meshfleet.service.accounts.login import Reception
from meshfleet.service.accounts.model import Actor
from meshfleet.service.accounts.passwords import HASHER, Passwords
from meshfleet.service.accounts.throttle import Throttle
from meshfleet.service.accounts.tokens import Tokens
from meshfleet.service.asyncapi import Messaging
from meshfleet.service.asyncapi import routes as asyncapi_routes
from meshfleet.service.audit import routes as audit_routes
from meshfleet.service.catalogue import routes as catalogue_routes
from meshfleet.service.console import site
from meshfleet.service.console.serving import Console
from meshfleet.service.devices import routes as device_routes
from meshfleet.service.devices.counting import Counting
from meshfleet.service.firmware import routes as firmware_routes
from meshfleet.service.firmware.addresses import Addresses
from meshfleet.service.firmware.images import Images, open_images
from meshfleet.service.firmware.intake import Intake
from meshfleet.service.gateways import routes as gateway_routes
from meshfleet.service.gateways.traffic import Traffic
from meshfleet.service.http import access, document
from meshfleet.service.http.asked import Asked
from meshfleet.service.http.door import Door
from meshfleet.service.http.limits import HTTP_LIMITS, HttpLimits
from meshfleet.service.http.pages import Pages
from meshfleet.service.http.parameters import read_limit
from meshfleet.service.http.problems import answer
from meshfleet.service.http.queries import QueryNames
from meshfleet.service.http.sharing import Sharing, giving
from meshfleet.service.ingest.rollups import Rollups
from meshfleet.service.jobs import device_routes as update_routes
from meshfleet.service.jobs import routes as job_routes
from meshfleet.service.jobs.bell import Bell
from meshfleet.service.jobs.shown.news import News
from meshfleet.service.labels import routes as label_routes
from meshfleet.service.live import routes as live_routes
from meshfleet.service.live.figures import LiveFigures
from meshfleet.service.live.live import PACE, Live, Pace
from meshfleet.service.operations import routes as operations_routes
from meshfleet.service.operations.figures import Figures
from meshfleet.service.operations.readiness import Readiness
from meshfleet.service.presence import routes as presence_routes
from meshfleet.service.requests import routes as request_routes
from meshfleet.service.requests.window import Window
from meshfleet.service.secrets import obtain
from meshfleet.service.telemetry import hole_routes, link_routes
from meshfleet.service.telemetry import routes as telemetry_routes
from meshfleet.service.telemetry.reading import BLOCKS, Blocks
from meshfleet.settings import Settings
from meshfleet.wire.rest import BrokerPlace

_LARGEST_BODY: Final = 1024 * 1024
"""Bytes (rest-27)."""

_ROUTERS: Final = (
    account_routes.router,
    people_routes.router,
    key_routes.router,
    audit_routes.router,
    device_routes.router,
    label_routes.device_router,
    label_routes.router,
    gateway_routes.router,
    presence_routes.router,
    update_routes.router,
    telemetry_routes.device_router,
    telemetry_routes.router,
    link_routes.router,
    hole_routes.router,
    catalogue_routes.router,
    request_routes.device_router,
    request_routes.router,
    job_routes.router,
    firmware_routes.router,
    firmware_routes.image_router,
    live_routes.stream_events,
    operations_routes.router,
    asyncapi_routes.router,
)

_READ: Final = {"limit": Provide(read_limit, sync_to_thread=False)}
"""Arguments that are read from every request in the same way."""


class Shared(NamedTuple):
    """What routes are given beside what a request says; they call it by these names."""

    addresses: Addresses
    bell: Bell
    blocks: Blocks
    broker: BrokerPlace | None
    counting: Counting
    database: Database
    figures: Figures
    gatekeeper: Gatekeeper
    images: Images
    intake: Intake
    live: Live
    messaging: Messaging
    news: News
    now: clock.Now
    pages: Pages
    passwords: Passwords
    readiness: Readiness
    reception: Reception
    rollups: Rollups
    samples: SampleStore
    traffic: Traffic
    window: Window


class Api:
    """Everything that answers requests, on one database. `app` is for an ASGI server."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        database: Database,
        settings: Settings,
        samples: SampleStore,
        *,
        pace: Pace = PACE,
        now: clock.Now = clock.now,
        steady: clock.Now = clock.steady,
        hasher: PasswordHasher = HASHER,
        limits: HttpLimits = HTTP_LIMITS,
        blocks: Blocks = BLOCKS,
    ) -> None:
        """Put everything together.

        `pace` is another one in tests alone, which cannot wait for that long.
        `steady` is the clock by which failed logins wait and reports are counted; it is never set.
        `hasher` and `limits` are other ones in tests alone, which make many passwords and do not wait,
        and so are `blocks`, as tests have few samples.
        """
        self.figures = figures = Figures()
        self.readiness = Readiness()
        self.traffic = Traffic(steady)
        tokens = Tokens(database.write_now(obtain, "tokens"))
        gatekeeper = Gatekeeper(database, tokens, now)
        self._passwords = Passwords(hasher)
        self.reception = reception = Reception(
            database,
            passwords=self._passwords,
            throttle=Throttle(),
            tokens=tokens,
            gatekeeper=gatekeeper,
            figures=figures,
            now=now,
            steady=steady,
        )
        self.rollups = Rollups()
        self.window = Window(database.write_now(obtain, "requests"))
        self.live = Live(database, gatekeeper, self.traffic, now, pace=pace)
        figures.show(LiveFigures(self.live.hub))
        self.bell = Bell()
        self.addresses = Addresses(database.write_now(obtain, "images"), settings.url, now)
        images = open_images(database, settings.data)
        images.sweep()
        shared = Shared(
            addresses=self.addresses,
            bell=self.bell,
            blocks=blocks,
            broker=settings.broker,
            counting=Counting(database),
            database=database,
            figures=figures,
            gatekeeper=gatekeeper,
            images=images,
            intake=Intake(images.folder, largest=settings.firmware_max_size),
            live=self.live,
            messaging=Messaging(settings),
            news=News(self.live.jobs, self.bell),
            now=now,
            pages=Pages(database.write_now(obtain, "pages")),
            passwords=self._passwords,
            readiness=self.readiness,
            reception=reception,
            rollups=self.rollups,
            samples=samples,
            traffic=self.traffic,
            window=self.window,
        )
        self.app = Door(Console(Sharing(routes(), shared), site.load()), figures, limits)

    def close(self) -> None:
        """Let go of threads."""
        self._passwords.close()


@cache
def openapi_document() -> dict[str, Any]:
    """The REST interface as OpenAPI 3.1."""
    return document.describe([*_ROUTERS, tell_document], ("actor", *Shared._fields), _READ)


@get("/api/v1/openapi.json", tags=["Operations"])
async def tell_document() -> dict[str, Any]:
    """Tell all that can be asked, as OpenAPI 3.1."""
    return openapi_document()


@cache
def routes() -> Litestar:
    """All of them, for every service in this process."""
    app = Litestar(
        [*_ROUTERS, live_routes.talk, tell_document],
        dependencies={
            "actor": Provide(_actor, sync_to_thread=False),
            **_READ,
            **{name: Provide(giving(name), sync_to_thread=False) for name in Shared._fields},
        },
        middleware=[access.Access(giving("gatekeeper")), QueryNames()],
        exception_handlers={Exception: answer},
        request_class=Asked,
        request_max_body_size=_LARGEST_BODY,
        openapi_config=None,
        logging_config=None,
    )
    access.check(app)
    return app


def _actor(request: Asked) -> Actor:
    return request.user
