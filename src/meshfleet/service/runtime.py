"""Assembly of report processing: the report source, ingest, and everything that follows a commit."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.db.samples import SampleKind, open_sample_store
from meshfleet.errors import FleetError
from meshfleet.mqtt.broker import take_ownership
from meshfleet.protocol.ids import mac_from_int, mac_to_int
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service import clock
from meshfleet.service.backfill import store as ledger
from meshfleet.service.backfill.acknowledger import SampleAcknowledger
from meshfleet.service.backfill.gap_check import run_gap_checks
from meshfleet.service.backfill.metrics import AckMetrics
from meshfleet.service.embedded_broker.endpoint import EmbeddedBroker
from meshfleet.service.external_broker.client import ExternalBrokerClient, build_link_options, load_client_id
from meshfleet.service.firmware.image_requests import ImageRequestHandler
from meshfleet.service.firmware.metrics import ImageRequestMetrics
from meshfleet.service.gateways import store as gateways
from meshfleet.service.gateways.metrics import GatewayMetrics
from meshfleet.service.gateways.versions import VersionTracker
from meshfleet.service.ingest.gateway_admission import GatewayAdmission
from meshfleet.service.ingest.metrics import IngestMetrics
from meshfleet.service.ingest.pipeline import DEFAULT_TIMINGS, IngestPipeline
from meshfleet.service.jobs.execution.runner import JobRunner
from meshfleet.service.locks import accepts_reports
from meshfleet.service.metadata.reader import MetadataReader
from meshfleet.service.presence import store as presences
from meshfleet.service.presence.gateway_clocks import GatewayClocks
from meshfleet.service.presence.gateway_poll import poll_gateways
from meshfleet.service.presence.metrics import PresenceMetrics
from meshfleet.service.presence.tracker import PresenceTracker
from meshfleet.service.requests.dispatcher import RequestDispatcher
from meshfleet.service.requests.gateway_ranking import FailedAttempts
from meshfleet.service.requests.gateway_selector import GatewaySelector
from meshfleet.service.requests.history import RequestHistory
from meshfleet.service.requests.metrics import RequestMetrics
from meshfleet.service.requests.rpc import RpcClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore
    from meshfleet.db.samples.sample import Retention
    from meshfleet.service.api import RestApi
    from meshfleet.service.embedded_broker.listeners import MqttListener
    from meshfleet.service.ingest.pipeline import IngestTimings
    from meshfleet.service.readiness import HealthCheck
    from meshfleet.service.transport import Transport
    from meshfleet.settings import Settings


_SOURCE_CHECK_SECONDS: Final = 1.0
"""Seconds between two checks whether reports can arrive."""


class ReportPipeline:
    """Everything that follows ingest: presence, backfill, versions, metadata, requests, firmware and jobs."""

    def __init__(  # noqa: PLR0913 # keyword-only collaborators
        self,
        database: Database,
        samples: SampleStore,
        settings: Settings,
        *,
        retention: Retention,
        source: HealthCheck,
        api: RestApi,
        ingest: IngestPipeline,
        transport: Transport,
        poll_interval: float,
    ) -> None:
        """`poll_interval` is the time between two polls of the gateways' versions, in seconds."""
        self._database = database
        self._samples = samples
        self._retention = retention
        self._source = source
        self._transport = transport
        self._poll_interval = poll_interval
        self._traffic = api.traffic
        now, clocks = (
            clock.now(),
            GatewayClocks(lambda gateway: transport.last_connection_number(mac_from_int(gateway))),
        )
        self._presence = PresenceTracker(
            clocks,
            external_broker=settings.external_broker is not None,
            retention_ms=_to_millis(settings.retention.connectivity),
            now=now,
        )
        self._presence.subscriber = api.live.devices
        self._backfill = SampleAcknowledger(transport, prefix=settings.topic_prefix, now=now)
        failures = FailedAttempts()
        asking = RpcClient(
            transport,
            TopicCodec(settings.topic_prefix),
            clock.now,
            get_version=lambda gateway: self._versions.get(mac_to_int(gateway)),
            max_concurrent=settings.requests_at_once,
            failures=failures,
            on_clock_sample=clocks.measure,
        )
        selector = GatewaySelector(
            database, samples, transport, rollups=api.rollups, failures=failures, now=clock.now
        )
        self._versions = VersionTracker(
            database,
            asking,
            transport,
            traffic=api.traffic,
            clocks=clocks,
            acks_enabled=settings.acks,
            now=clock.now,
            steady=clock.steady,
        )
        ingest.acking_gateways = self._versions.ack_capable
        ingest.clock_shifts, ingest.is_shift_confirmed = clocks.shifts, clocks.is_confirmed
        self._metadata = MetadataReader(
            database, asking, now=clock.now, steady=clock.steady, select_gateways=selector.select_many
        )
        self._history = RequestHistory(database, clock.now, retention=_to_millis(settings.retention.request))
        self._dispatcher = RequestDispatcher(
            database,
            rpc=asking,
            selector=selector,
            history=self._history,
            now=clock.now,
        )
        self._firmware_queries = ImageRequestHandler(database, transport, api.url_signer)
        self._runner = JobRunner(
            database,
            asking,
            clock.now,
            steady=clock.steady,
            notify=api.live.jobs.mark_changed,
            select_gateways=selector.select_many,
        )
        api.job_wakeup.subscribe(self._runner.wake)
        self._request_facade = api.request_facade
        for follower in (self._backfill, self._presence, api.traffic, api.live.reports):
            ingest.subscribe(follower)
        for figures in (
            AckMetrics(self._backfill),
            PresenceMetrics(self._presence),
            GatewayMetrics(self._versions),
            RequestMetrics(asking, self._dispatcher, self._history),
            ImageRequestMetrics(self._firmware_queries),
        ):
            api.metrics.register(figures)

    async def run(self) -> None:
        """Run all background tasks until canceled. Call `restore` before."""
        async with asyncio.TaskGroup() as tasks:
            roll = poll_gateways(self._transport, self._presence, self._on_gateway_connected)
            checking = run_gap_checks(self._backfill, self._samples, self._retention, clock.now)
            tasks.create_task(roll, name="presence.roll")
            tasks.create_task(self._watch_source(), name="presence.deafness")
            tasks.create_task(checking, name="acks.checking")
            tasks.create_task(self._versions.run(pause=self._poll_interval), name="gateways.versions")
            tasks.create_task(self._metadata.run(), name="inquiry")
            tasks.create_task(self._dispatcher.run(), name="requests")
            tasks.create_task(self._firmware_queries.run(), name="firmware.questions")
            tasks.create_task(self._runner.run(), name="jobs")
            self._request_facade.attach(self._dispatcher)

    async def restore(self) -> None:
        """Load the state that an earlier process persisted."""
        # In threads: there may be a million entries, and no other task uses these objects yet.
        await asyncio.to_thread(self._presence.restore, await self._database.read(presences.load_presence))
        await asyncio.to_thread(self._backfill.restore, await self._database.read(ledger.load_series))
        self._traffic.modes.restore(await self._database.read(gateways.load_modes), clock.now())
        await self._versions.restore()
        await self._history.restore()

    async def _watch_source(self) -> None:
        """Suspend the detection of silent devices while no reports can arrive (rest-192)."""
        while True:
            if self._source.trouble is not None:
                self._presence.pause_detection(clock.now())
            await asyncio.sleep(_SOURCE_CHECK_SECONDS)

    def _on_gateway_connected(self, gateway: int) -> None:
        self._backfill.gateway_reconnected(gateway, clock.now())


def _to_millis(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000


# Report sources: the embedded broker or an external one; both feed the ingest pipeline.

_log = logging.getLogger(__name__)

_MS_PER_SECOND: Final = 1000

_FLUSH_SECONDS: Final = 5.0
"""Seconds to write pending state at shutdown."""


def open_service_samples(database: Database, settings: Settings) -> SampleStore:
    """Open the sample store of a service with the retention of its settings."""
    return open_sample_store(database, settings.data, _build_retention(settings), now=clock.now())


def _build_retention(settings: Settings) -> Retention:
    kept = settings.retention
    seconds: dict[int, int | None] = {
        SampleKind.PROPERTY: kept.property,
        SampleKind.MEASUREMENT: kept.measurement,
        SampleKind.MEASUREMENT_ERROR: kept.measurement_error,
        SampleKind.EVENT: kept.event,
        SampleKind.LINK: kept.link,
        SampleKind.HEARTBEAT: kept.heartbeat,
    }
    return {kind: None if each is None else each * _MS_PER_SECOND for kind, each in seconds.items()}


async def run_report_pipeline(  # noqa: PLR0913 # one caller
    database: Database,
    samples: SampleStore,
    settings: Settings,
    api: RestApi,
    listeners: Sequence[MqttListener],
    *,
    pauses: IngestTimings = DEFAULT_TIMINGS,
) -> None:
    """Process reports until canceled. Return at once if no report source is configured."""
    if not accepts_reports(settings):
        return
    owner = await database.write(take_ownership)
    ingest = IngestPipeline(
        database,
        samples,
        prefix=settings.topic_prefix,
        admission=None
        if settings.external_broker is None
        else GatewayAdmission(autoclaim=settings.autoclaim),
        owner=None if database.is_sqlite else owner,
        rollups=api.rollups,
        timings=pauses,
        now=clock.now,
    )
    await ingest.restore()
    api.metrics.register(IngestMetrics(ingest.counters))
    door = await _build_report_source(database, settings, api, ingest, owner)
    following = ReportPipeline(
        database,
        samples,
        settings,
        retention=_build_retention(settings),
        source=door,
        api=api,
        ingest=ingest,
        transport=door.broker if isinstance(door, EmbeddedBroker) else door,
        poll_interval=pauses.poll_seconds,
    )
    await following.restore()
    for each in (ingest, door):
        api.readiness.add_check(each)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ingest.run(), name="ingest")
            tasks.create_task(following.run(), name="following")
            await (door.run(listeners) if isinstance(door, EmbeddedBroker) else door.run())
    finally:
        await _flush_pending(ingest)


async def _flush_pending(ingest: IngestPipeline) -> None:
    """Write pending state. If that fails, the next start recovers it from the journal."""
    try:
        async with asyncio.timeout(_FLUSH_SECONDS):
            await ingest.flush()
    except (FleetError, DBAPIError, TimeoutError) as exc:
        _log.warning(
            "pending state could not be written at shutdown, the next start recovers it: %s",
            type(exc).__name__,
        )


async def _build_report_source(
    database: Database, settings: Settings, api: RestApi, ingest: IngestPipeline, owner: bytes
) -> EmbeddedBroker | ExternalBrokerClient:
    """Return the embedded broker, or the client of the external broker if one is configured."""
    if settings.external_broker is None:
        return await asyncio.to_thread(
            EmbeddedBroker,
            database,
            settings,
            consumer=ingest,
            owner=owner,
            logins=api.logins,
            metrics=api.metrics,
            now=clock.now,
            steady=clock.steady,
        )
    return ExternalBrokerClient(
        settings.external_broker,
        await database.write(load_client_id),
        prefix=settings.topic_prefix,
        consumer=ingest,
        options=await asyncio.to_thread(build_link_options, settings),
        max_age=settings.requests_max_age,
    )
