"""Builds the REST interface from all routes and the objects that routes share."""

from functools import cache
from typing import Any, Final, NamedTuple

from argon2 import PasswordHasher
from litestar import Litestar, get
from litestar.di import Provide

from meshfleet.db import Database
from meshfleet.db.samples import SampleStore
from meshfleet.rest.gateways import BrokerEndpoint
from meshfleet.service import clock
from meshfleet.service.accounts import routes as account_routes
from meshfleet.service.accounts.bearer import BearerAuthenticator, TokenSigner
from meshfleet.service.accounts.login import Logins
from meshfleet.service.accounts.passwords import PASSWORD_HASHER, PasswordVerifier
from meshfleet.service.accounts.throttle import LoginThrottle
from meshfleet.service.actor import Actor
from meshfleet.service.alarms import routes as alarm_routes
from meshfleet.service.alarms import rule_routes, silence_routes
from meshfleet.service.asyncapi import MessagingDocument
from meshfleet.service.asyncapi import routes as asyncapi_routes
from meshfleet.service.audit import routes as audit_routes
from meshfleet.service.availability import routes as availability_routes
from meshfleet.service.catalogue import routes as catalogue_routes
from meshfleet.service.console import static_files
from meshfleet.service.console.static_files import ConsoleMiddleware
from meshfleet.service.devices import routes as device_routes
from meshfleet.service.devices.state_writer import StateWriter
from meshfleet.service.devices.summary import SummaryCache
from meshfleet.service.firmware import routes as firmware_routes
from meshfleet.service.firmware.image_store import ImageStore, open_image_store
from meshfleet.service.firmware.signed_urls import ImageUrlSigner
from meshfleet.service.firmware.uploads import UploadReceiver
from meshfleet.service.fleet_metrics import FleetMetrics
from meshfleet.service.gateways import routes as gateway_routes
from meshfleet.service.gateways.traffic import GatewayTraffic
from meshfleet.service.http import access, openapi
from meshfleet.service.http.dependencies import RouteDependencyMiddleware, build_provider
from meshfleet.service.http.limits import HTTP_LIMITS, HttpLimits
from meshfleet.service.http.middleware import MetricsAndLimitsMiddleware
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.problems import build_problem_response
from meshfleet.service.http.query import QueryNameMiddleware, parse_limit
from meshfleet.service.http.request import ApiRequest
from meshfleet.service.ingest.commit_timer import CommitTimer
from meshfleet.service.ingest.rollups import Rollups
from meshfleet.service.jobs import routes as job_routes
from meshfleet.service.jobs.notifications import JobNotifier, RunnerWakeup
from meshfleet.service.labels import routes as label_routes
from meshfleet.service.live import routes as live_routes
from meshfleet.service.live.live_events import LIVE_TIMINGS, LiveEvents, LiveTimings
from meshfleet.service.metric_table import add_build_metrics, add_live_metrics, add_storage_metrics
from meshfleet.service.metrics import Metrics
from meshfleet.service.notifications import routes as channel_routes
from meshfleet.service.notifications.routes import ChannelTesterFacade
from meshfleet.service.notifications.target_guard import TargetGuard
from meshfleet.service.operations import routes as operations_routes
from meshfleet.service.positions import coverage_routes, survey_routes, visit_routes
from meshfleet.service.positions import routes as position_routes
from meshfleet.service.positions.positions import PositionFinder
from meshfleet.service.positions.reading_store import ReadingStore
from meshfleet.service.presence import routes as presence_routes
from meshfleet.service.readiness import Readiness
from meshfleet.service.reload import SettingsReloader
from meshfleet.service.requests import routes as request_routes
from meshfleet.service.requests.dispatcher import RequestFacade
from meshfleet.service.secret_store import load_or_create_secret
from meshfleet.service.sites import place_routes, plan_routes
from meshfleet.service.sites import routes as site_routes
from meshfleet.service.sites.changes import SiteChanges
from meshfleet.service.sites.plan_upload import PlanReceiver
from meshfleet.service.storage import routes as storage_routes
from meshfleet.service.storage.monitor import StorageMonitor
from meshfleet.service.systemd import SystemdNotifier
from meshfleet.service.telemetry import export_routes, gap_routes, link_routes, reject_routes, sample_routes
from meshfleet.service.telemetry.chunked_read import DEFAULT_CHUNK_SIZES, ChunkSizes
from meshfleet.service.topology import routes as topology_routes
from meshfleet.service.topology.parent_tracker import ParentTracker
from meshfleet.service.topology.reader import TopologyReader
from meshfleet.settings import Settings

_MAX_BODY_BYTES: Final = 1024 * 1024
"""Maximum size of an HTTP request body in bytes (rest-27)."""

_ROUTERS: Final = (
    account_routes.auth_router,
    account_routes.user_router,
    account_routes.api_key_router,
    audit_routes.router,
    device_routes.router,
    label_routes.device_router,
    label_routes.router,
    gateway_routes.router,
    topology_routes.gateway_router,
    topology_routes.device_router,
    presence_routes.router,
    position_routes.device_router,
    position_routes.site_router,
    survey_routes.router,
    visit_routes.router,
    coverage_routes.router,
    job_routes.device_updates_router,
    sample_routes.router,
    export_routes.router,
    reject_routes.router,
    link_routes.router,
    gap_routes.router,
    site_routes.router,
    place_routes.router,
    place_routes.device_router,
    plan_routes.router,
    catalogue_routes.router,
    request_routes.device_router,
    request_routes.router,
    job_routes.router,
    alarm_routes.router,
    alarm_routes.attention_router,
    alarm_routes.device_router,
    rule_routes.router,
    silence_routes.router,
    availability_routes.router,
    channel_routes.router,
    channel_routes.alarm_route_router,
    firmware_routes.router,
    firmware_routes.image_router,
    live_routes.stream_events,
    operations_routes.router,
    storage_routes.router,
    asyncapi_routes.router,
)

_QUERY_PROVIDERS: Final = {"limit": Provide(parse_limit, sync_to_thread=False)}
"""Providers of route arguments that are parsed from query parameters common to many routes."""


class RouteDependencies(NamedTuple):
    """Objects that routes receive as arguments with the names of these fields."""

    url_signer: ImageUrlSigner
    job_wakeup: RunnerWakeup
    chunk_sizes: ChunkSizes
    broker: BrokerEndpoint | None
    device_summaries: SummaryCache
    database: Database
    metrics: Metrics
    fleet_metrics: FleetMetrics
    authenticator: BearerAuthenticator
    image_store: ImageStore
    upload_receiver: UploadReceiver
    live: LiveEvents
    messaging: MessagingDocument
    job_notifier: JobNotifier
    now: clock.Now
    pages: PageTokens
    plan_receiver: PlanReceiver
    site_changes: SiteChanges
    positions: PositionFinder
    passwords: PasswordVerifier
    readiness: Readiness
    state_writer: StateWriter
    logins: Logins
    rollups: Rollups
    samples: SampleStore
    storage_monitor: StorageMonitor
    traffic: GatewayTraffic
    reloader: SettingsReloader
    request_facade: RequestFacade
    channel_tester: ChannelTesterFacade
    target_guard: TargetGuard
    topology_reader: TopologyReader


class RestApi:
    """REST interface of a service. The attribute `app` is the ASGI application."""

    def __init__(  # noqa: PLR0913 # keyword-only settings for tests
        self,
        database: Database,
        settings: Settings,
        samples: SampleStore,
        *,
        live_timings: LiveTimings = LIVE_TIMINGS,
        reloader: SettingsReloader | None = None,
        now: clock.Now = clock.now,
        monotonic: clock.Now = clock.monotonic,
        hasher: PasswordHasher = PASSWORD_HASHER,
        limits: HttpLimits = HTTP_LIMITS,
        chunk_sizes: ChunkSizes = DEFAULT_CHUNK_SIZES,
    ) -> None:
        """Create all objects that the REST routes need.

        Without a `reloader`, the settings cannot be reloaded. `monotonic` is the clock for login delays and
        report rates. Only tests pass `live_timings`, `hasher`, `limits` and `chunk_sizes`, for shorter waits,
        cheap password hashes and small chunks.
        """
        self.metrics = Metrics()
        self.readiness = Readiness()
        self.commit_timer = CommitTimer()
        self.reloader = reloader or SettingsReloader(settings, lambda: settings, SystemdNotifier({}))
        self.traffic = GatewayTraffic(monotonic)
        tokens = TokenSigner(database.write_now(load_or_create_secret, "tokens"))
        authenticator = BearerAuthenticator(database, tokens, now)
        self._passwords = PasswordVerifier(hasher)
        self.logins = Logins(
            database,
            verifier=self._passwords,
            throttle=LoginThrottle(),
            signer=tokens,
            authenticator=authenticator,
            metrics=self.metrics,
            now=now,
            monotonic=monotonic,
        )
        self.rollups = Rollups()
        self.state_writer = StateWriter()
        self.site_changes = SiteChanges(database)
        self.positions = PositionFinder(
            database,
            samples,
            self.rollups,
            readings=ReadingStore(retention_ms=settings.retention.readings * 1000),
            site_changes=self.site_changes,
            now=now,
        )
        self.request_facade = RequestFacade(database.write_now(load_or_create_secret, "requests"))
        self.channel_tester = ChannelTesterFacade()
        self.live = LiveEvents(database, authenticator, self.traffic, now, timings=live_timings)
        add_live_metrics(self.metrics, self.live.hub)
        self.parent_tracker = ParentTracker(self.rollups, self.live.topology)
        self.storage_monitor = StorageMonitor(database, settings, now)
        add_storage_metrics(self.metrics, self.storage_monitor)
        add_build_metrics(self.metrics, is_sqlite=database.is_sqlite)
        fleet_metrics = FleetMetrics(database, settings, now=now, monotonic=monotonic)
        fleet_metrics.register_in(self.metrics)
        self.reloader.register("metrics", apply=fleet_metrics.apply_settings)
        self.job_wakeup = RunnerWakeup()
        self.url_signer = ImageUrlSigner(
            database.write_now(load_or_create_secret, "images"), settings.url, now
        )
        images = open_image_store(database, settings.data)
        images.remove_orphaned_images()
        shared = RouteDependencies(
            url_signer=self.url_signer,
            job_wakeup=self.job_wakeup,
            chunk_sizes=chunk_sizes,
            broker=settings.gateway_broker,
            device_summaries=SummaryCache(database),
            database=database,
            metrics=self.metrics,
            fleet_metrics=fleet_metrics,
            authenticator=authenticator,
            image_store=images,
            upload_receiver=UploadReceiver(images.folder, max_image_bytes=settings.firmware_max_size),
            live=self.live,
            messaging=MessagingDocument(settings),
            job_notifier=JobNotifier(self.live.jobs.mark_changed, self.job_wakeup),
            now=now,
            pages=PageTokens(database.write_now(load_or_create_secret, "pages")),
            plan_receiver=PlanReceiver(),
            site_changes=self.site_changes,
            positions=self.positions,
            passwords=self._passwords,
            readiness=self.readiness,
            state_writer=self.state_writer,
            logins=self.logins,
            rollups=self.rollups,
            samples=samples,
            storage_monitor=self.storage_monitor,
            traffic=self.traffic,
            reloader=self.reloader,
            request_facade=self.request_facade,
            channel_tester=self.channel_tester,
            target_guard=TargetGuard(settings.webhooks),
            topology_reader=TopologyReader(
                database, samples, rollups=self.rollups, parents=self.parent_tracker.parents, now=now
            ),
        )
        self.app = MetricsAndLimitsMiddleware(
            ConsoleMiddleware(
                RouteDependencyMiddleware(build_litestar_app(), shared), static_files.load_static_files()
            ),
            self.metrics,
            limits,
        )

    def close(self) -> None:
        """Stop the threads that verify passwords."""
        self._passwords.close()


@cache
def load_openapi_document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the REST interface."""
    return openapi.build_openapi_document(
        [*_ROUTERS, get_openapi], ("actor", *RouteDependencies._fields), _QUERY_PROVIDERS
    )


@get("/api/v1/openapi.json", tags=["Operations"])
async def get_openapi() -> dict[str, Any]:
    """Get the OpenAPI document of the REST interface. The document follows OpenAPI 3.1."""
    return load_openapi_document()


@cache
def build_litestar_app() -> Litestar:
    """Return the Litestar application with all routes, shared by every service in this process."""
    app = Litestar(
        [*_ROUTERS, live_routes.handle_websocket, get_openapi],
        dependencies={
            "actor": Provide(_provide_actor, sync_to_thread=False),
            **_QUERY_PROVIDERS,
            **{
                name: Provide(build_provider(name), sync_to_thread=False)
                for name in RouteDependencies._fields
            },
        },
        middleware=[access.AccessMiddleware(_identify), QueryNameMiddleware()],
        exception_handlers={Exception: build_problem_response},
        request_class=ApiRequest,
        request_max_body_size=_MAX_BODY_BYTES,
        openapi_config=None,
        logging_config=None,
    )
    access.check_required_roles(app)
    return app


async def _identify(bearer: str, address: str | None) -> Actor:
    """Authenticate a bearer credential with the authenticator of the service that handles the request."""
    authenticator: BearerAuthenticator = build_provider("authenticator")()
    return await authenticator.identify(bearer, address)


def _provide_actor(request: ApiRequest) -> Actor:
    return request.user
