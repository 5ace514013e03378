"""Background tasks of the service: receive reports, process committed reports, send requests, run jobs."""

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
from meshfleet.rest.channels import ChannelKind
from meshfleet.service import clock, metric_table
from meshfleet.service.alarms.probes import RelayProber
from meshfleet.service.alarms.runner import AlarmRunner
from meshfleet.service.alarms.service_facts import ServiceFactsReader
from meshfleet.service.alarms.user_rules.evaluator import UserRules
from meshfleet.service.availability.recorder import AvailabilityRecorder
from meshfleet.service.backfill import store as backfill_store
from meshfleet.service.backfill.acknowledger import SampleAcknowledger
from meshfleet.service.backfill.gap_check import run_gap_checks
from meshfleet.service.embedded_broker.endpoint import EmbeddedBroker
from meshfleet.service.external_broker.client import ExternalBrokerClient, build_link_options, load_client_id
from meshfleet.service.firmware.image_requests import ImageRequestHandler
from meshfleet.service.gateways import store as gateway_store
from meshfleet.service.gateways.versions import GatewayVersions, VersionTracker
from meshfleet.service.homeassistant.integration import HomeAssistantIntegration
from meshfleet.service.homeassistant.publisher import PublisherSources
from meshfleet.service.influx.writer import READER_NAME, InfluxWriter
from meshfleet.service.ingest.gateway_admission import GatewayAdmission
from meshfleet.service.ingest.pipeline import DEFAULT_TIMINGS, IngestPipeline
from meshfleet.service.jobs.execution.runner import JobRunner
from meshfleet.service.locks import accepts_reports
from meshfleet.service.metadata.reader import MetadataReader
from meshfleet.service.notifications.http_sender import HttpSender
from meshfleet.service.notifications.mail import MailDeliverer
from meshfleet.service.notifications.mqtt_publisher import MqttDeliverer
from meshfleet.service.notifications.notifier import Notifier
from meshfleet.service.notifications.watchdog import WatchdogDeliverer
from meshfleet.service.notifications.webhook import WebhookDeliverer
from meshfleet.service.positions.reading_log import ReadingLog
from meshfleet.service.positions.tracker import PositionTracker
from meshfleet.service.presence import store as presence_store
from meshfleet.service.presence.gateway_clocks import GatewayClocks
from meshfleet.service.presence.gateway_poll import poll_gateways
from meshfleet.service.presence.tracker import PresenceTracker
from meshfleet.service.requests.dispatcher import RequestDispatcher
from meshfleet.service.requests.gateway_ranking import FailedAttempts
from meshfleet.service.requests.gateway_selector import GatewaySelector
from meshfleet.service.requests.history import RequestHistory
from meshfleet.service.requests.rpc import RpcClient
from meshfleet.service.secret_store import INSTANCE_SECRET, format_instance_id, load_or_create_secret
from meshfleet.service.topology import store as topology_store

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore
    from meshfleet.db.samples.sample import Retention
    from meshfleet.service.api import RestApi
    from meshfleet.service.embedded_broker.listeners import MqttListener
    from meshfleet.service.ingest.pipeline import IngestTimings
    from meshfleet.service.server_certificate import ServerCertificate
    from meshfleet.service.transport import ReportSource
    from meshfleet.settings import Settings

_log = logging.getLogger(__name__)

_SOURCE_CHECK_SECONDS: Final = 1.0
"""Seconds between two checks whether the broker can deliver reports."""

_FLUSH_SECONDS: Final = 5.0
"""Maximum seconds to write pending device states at shutdown."""


def open_service_samples(database: Database, settings: Settings) -> SampleStore:
    """Open the sample store of a service with the retention periods of its settings."""
    return open_sample_store(database, settings.data, _build_retention(settings), now=clock.now())


async def run_background_tasks(  # noqa: PLR0913 # keyword-only except what each of them needs
    database: Database,
    samples: SampleStore,
    settings: Settings,
    api: RestApi,
    listeners: Sequence[MqttListener],
    *,
    certificate: ServerCertificate | None = None,
    timings: IngestTimings = DEFAULT_TIMINGS,
) -> None:
    """Receive reports and run all other background tasks until canceled.

    Return at once if the settings have neither an external broker nor an MQTT listener. `certificate` is the
    TLS certificate of the listeners, if they have one.
    """
    if not accepts_reports(settings):
        return
    owner = await database.write(take_ownership)
    instance = await database.write(load_or_create_secret, INSTANCE_SECRET)
    source = await _open_report_source(database, settings, api, listeners, owner)
    runtime = Runtime(
        database,
        samples,
        settings,
        api=api,
        source=source,
        owner=owner,
        instance=instance,
        certificate=certificate,
        timings=timings,
    )
    await runtime.restore()
    await runtime.run()


async def _open_report_source(
    database: Database, settings: Settings, api: RestApi, listeners: Sequence[MqttListener], owner: bytes
) -> ReportSource:
    if settings.external_broker is None:
        embedded = await asyncio.to_thread(
            EmbeddedBroker,
            database,
            settings,
            listeners,
            owner=owner,
            logins=api.logins,
            metrics=api.metrics,
            now=clock.now,
            monotonic=clock.monotonic,
        )
        api.reloader.register("limits", apply=lambda changed: embedded.broker.apply_limits(changed.limits))
        api.reloader.register("homeassistant", apply=embedded.apply_home_assistant)
        return embedded
    return ExternalBrokerClient(
        settings.external_broker,
        await database.write(load_client_id),
        prefix=settings.topic_prefix,
        options=await asyncio.to_thread(build_link_options, settings),
        max_age=settings.requests_max_age,
    )


class Runtime:
    """Builds, restores and runs all background tasks of a service."""

    def __init__(  # noqa: PLR0913 # keyword-only collaborators
        self,
        database: Database,
        samples: SampleStore,
        settings: Settings,
        *,
        api: RestApi,
        source: ReportSource,
        owner: bytes,
        instance: bytes,
        certificate: ServerCertificate | None,
        timings: IngestTimings,
    ) -> None:
        self._database = database
        self._samples = samples
        self._api = api
        self._source = source
        self._transport = transport = source.transport
        self._poll_seconds = timings.poll_seconds
        now = clock.now()
        # Requests: which gateways there are, what they support, and which one reaches a device.
        clocks = GatewayClocks(lambda gateway: transport.last_connection_id(mac_from_int(gateway)))
        versions = GatewayVersions(acks_enabled=settings.acks)
        failures = FailedAttempts()
        self._rpc = rpc = RpcClient(
            transport,
            TopicCodec(settings.topic_prefix),
            clock.now,
            get_version=lambda gateway: versions.get(mac_to_int(gateway)),
            max_concurrent=settings.requests_at_once,
            failures=failures,
            on_clock_sample=clocks.measure_offset,
        )
        selector = GatewaySelector(
            database, samples, transport, rollups=api.rollups, failures=failures, now=clock.now
        )
        self._version_tracker = VersionTracker(
            database,
            rpc,
            transport,
            versions=versions,
            traffic=api.traffic,
            clocks=clocks,
            now=clock.now,
            monotonic=clock.monotonic,
        )
        self._metadata = MetadataReader(
            database, rpc, now=clock.now, monotonic=clock.monotonic, select_gateways=selector.select_gateways
        )
        self._history = RequestHistory(database, clock.now, retention=_to_millis(settings.retention.request))
        self._dispatcher = RequestDispatcher(
            database, rpc=rpc, selector=selector, history=self._history, now=clock.now
        )
        # Firmware updates.
        self._image_requests = ImageRequestHandler(database, transport, api.url_signer)
        self._job_runner = JobRunner(
            database,
            rpc,
            clock.now,
            monotonic=clock.monotonic,
            notify=api.live.jobs.mark_changed,
            select_gateways=selector.select_gateways,
        )
        api.job_wakeup.subscribe(self._job_runner.wake)
        # Reports, and the subscribers of committed reports.
        self._presence = PresenceTracker(
            clocks,
            external_broker=settings.external_broker is not None,
            retention_ms=_to_millis(settings.retention.connectivity),
            subscriber=api.live.devices,
            now=now,
        )
        self._backfill = SampleAcknowledger(transport, prefix=settings.topic_prefix, now=now)
        self._ingest = IngestPipeline(
            database,
            samples,
            prefix=settings.topic_prefix,
            admission=None
            if settings.external_broker is None
            else GatewayAdmission(autoclaim=settings.autoclaim),
            owner=None if database.is_sqlite else owner,
            rollups=api.rollups,
            commit_timer=api.commit_timer,
            acking_gateways=versions.ack_capable,
            clock_shifts=clocks.shifts,
            is_shift_confirmed=clocks.is_confirmed,
            timings=timings,
            now=clock.now,
        )
        self._readings = ReadingLog(api.positions.readings)
        self._positions = PositionTracker(
            database,
            api.positions,
            api.live.positions,
            retention_ms=_to_millis(settings.retention.connectivity),
            now=clock.now,
        )
        user_rules = UserRules(database, samples, now=clock.now)
        self._availability = AvailabilityRecorder(_to_millis(settings.retention.availability))
        self._alarms = AlarmRunner(
            database,
            self._on_alarms_changed,
            is_receiving=lambda: source.problem is None,
            read_service_facts=ServiceFactsReader(
                settings.data if database.is_sqlite else None,
                source=source,
                commit_timer=api.commit_timer,
                storage=api.storage_monitor,
                certificate=certificate,
                now=clock.now,
            ).read,
            owner=None if database.is_sqlite else owner,
            retention_ms=_to_millis(settings.retention.alarm),
            user_rules=user_rules,
            availability=self._availability,
            now=clock.now,
        )
        self._relay_prober = RelayProber(
            database,
            rpc,
            owner=None if database.is_sqlite else owner,
            now=clock.now,
            monotonic=clock.monotonic,
        )
        installation = format_instance_id(instance)
        self._mail = MailDeliverer(settings.mail, public_url=settings.url, installation=installation)
        sender = HttpSender(settings.webhooks)
        self._notifier = Notifier(
            database,
            {
                ChannelKind.WEBHOOK: WebhookDeliverer(
                    sender, public_url=settings.url, installation=installation
                ),
                ChannelKind.EMAIL: self._mail,
                ChannelKind.WATCHDOG: WatchdogDeliverer(sender),
                ChannelKind.MQTT: MqttDeliverer(source, prefix=settings.topic_prefix),
            },
            on_changed=api.live.alarms.mark_changed,
            is_well=lambda: self._alarms.is_working and source.problem is None,
            owner=None if database.is_sqlite else owner,
            now=clock.now,
        )
        api.parent_tracker.retention_ms = _to_millis(settings.retention.link)
        for subscriber in (
            self._backfill,
            self._presence,
            api.traffic,
            self._readings,
            api.live.reports,
            api.parent_tracker,
            user_rules.tracker,
        ):
            self._ingest.subscribe(subscriber)
        self._homeassistant = HomeAssistantIntegration(
            settings,
            PublisherSources(database, samples, api.traffic, api.request_facade, settings.url, clock.now),
            source.broker if isinstance(source, EmbeddedBroker) else None,
            subscribe=self._ingest.subscribe,
        )
        metrics = api.metrics
        metric_table.add_ingest_metrics(metrics, self._ingest.counters)
        metric_table.add_backfill_metrics(metrics, self._backfill)
        metric_table.add_gateway_metrics(metrics, versions)
        metric_table.add_presence_metrics(metrics, self._presence)
        metric_table.add_request_metrics(metrics, rpc, self._dispatcher, self._history)
        metric_table.add_firmware_metrics(metrics, self._image_requests)
        self._influx = (
            None if settings.influx.url is None else InfluxWriter(database, samples, settings.influx)
        )
        if (influx := self._influx) is not None:
            metric_table.add_integration_metrics(
                metrics, READER_NAME, lambda: influx.queue_length, lambda: influx.failures
            )
        metric_table.add_integration_metrics(
            metrics,
            "homeassistant",
            lambda: self._homeassistant.pending_count,
            lambda: self._homeassistant.failures,
        )
        api.reloader.register("requests", apply=self._apply_request_settings)
        api.reloader.register("retention", apply=self._apply_retention)
        api.reloader.register(
            "homeassistant",
            apply=self._homeassistant.apply_settings,
            # The kind of broker of the service itself changes only with a restart.
            is_possible=lambda changed: (
                (changed.external_broker is None) == isinstance(source, EmbeddedBroker)
            ),
        )

    async def restore(self) -> None:
        """Load the state that an earlier process of the service stored. Call this before `run`."""
        await self._restore_readings()
        await self._positions.restore()
        await self._ingest.restore()
        # In threads: there may be a million entries, and no other task uses these objects yet.
        presence = await self._database.read(presence_store.load_presence)
        await asyncio.to_thread(self._presence.restore, presence)
        self._api.parent_tracker.restore(await self._database.read(topology_store.load_known_parents))
        series = await self._database.read(backfill_store.load_series)
        await asyncio.to_thread(self._backfill.restore, series)
        self._api.traffic.modes.restore(
            await self._database.read(gateway_store.load_gateway_modes), clock.now()
        )
        await self._version_tracker.restore()
        await self._history.restore()
        await self._restore_readers()

    async def _restore_readings(self) -> None:
        """Load the readings of anchors that arrived in the last hour, and those of the journal."""
        await self._api.site_changes.check()
        self._api.positions.update_anchors()
        await self._readings.restore(self._database, clock.now())

    async def _restore_readers(self) -> None:
        """Open the readers of integrations before samples arrive, and forget those that are off now."""
        names = [] if self._influx is None else [READER_NAME]
        for name in await self._samples.remove_other_readers(names):
            _log.warning("%s is switched off: its unsent samples are not kept any more", name)
        for name in names:
            await self._samples.open_reader(name)

    async def run(self) -> None:
        """Run all background tasks until canceled, then write pending device states to the database."""
        for check in (self._ingest, self._source):
            self._api.readiness.add_check(check)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._start_tasks(tasks)
                self._api.request_facade.attach(self._dispatcher)
                self._api.channel_tester.attach(self._notifier)
                self._api.state_writer.attach(self._ingest.flush)
                await self._source.run(self._ingest)
        finally:
            self._mail.close()
            await self._flush_pending()

    def _apply_request_settings(self, settings: Settings) -> None:
        self._source.set_request_max_age(settings.requests_max_age)
        self._rpc.set_max_concurrent(settings.requests_at_once)

    def _apply_retention(self, settings: Settings) -> None:
        self._samples.retention = _build_retention(settings)
        self._history.retention = _to_millis(settings.retention.request)
        self._presence.retention_ms = _to_millis(settings.retention.connectivity)
        self._positions.retention_ms = _to_millis(settings.retention.connectivity)
        self._alarms.retention_ms = _to_millis(settings.retention.alarm)
        self._availability.retention_ms = _to_millis(settings.retention.availability)
        self._api.parent_tracker.retention_ms = _to_millis(settings.retention.link)
        self._api.storage_monitor.set_retention(settings.retention)
        self._api.positions.readings.retention_ms = settings.retention.readings * 1000

    def _start_tasks(self, tasks: asyncio.TaskGroup) -> None:
        gateway_poll = poll_gateways(self._transport, self._presence, self._on_gateway_connected)
        gap_checks = run_gap_checks(self._backfill, self._samples, clock.now)
        version_polls = self._version_tracker.run(pause=self._poll_seconds)
        tasks.create_task(self._ingest.run(), name="ingest")
        tasks.create_task(gateway_poll, name="presence.gateway_poll")
        tasks.create_task(self._watch_source(), name="presence.source_check")
        tasks.create_task(gap_checks, name="backfill.gap_checks")
        tasks.create_task(version_polls, name="gateways.versions")
        tasks.create_task(self._metadata.run(), name="metadata")
        tasks.create_task(self._dispatcher.run(), name="requests")
        tasks.create_task(self._image_requests.run(), name="firmware.image_requests")
        tasks.create_task(self._job_runner.run(), name="jobs")
        tasks.create_task(self._api.positions.watch_sites(), name="positions.sites")
        tasks.create_task(self._positions.run(), name="positions.tracker")
        tasks.create_task(self._alarms.run(), name="alarms")
        tasks.create_task(self._relay_prober.run(), name="alarms.probes")
        tasks.create_task(self._notifier.run(), name="notifications")
        if self._influx is not None:
            tasks.create_task(self._influx.run(), name="influx")
        tasks.create_task(self._homeassistant.run(), name="homeassistant")

    async def _watch_source(self) -> None:
        """Pause the detection of offline devices while the broker cannot deliver reports (rest-192)."""
        while True:
            if self._source.problem is not None:
                self._presence.pause_detection(clock.now())
            await asyncio.sleep(_SOURCE_CHECK_SECONDS)

    def _on_alarms_changed(self, numbers: Collection[int]) -> None:
        self._api.live.alarms.mark_changed(numbers)
        self._notifier.wake()

    def _on_gateway_connected(self, gateway: int) -> None:
        self._backfill.record_gateway_connection(gateway, clock.now())

    async def _flush_pending(self) -> None:
        """Write pending device states to the database. If this fails, the next start restores them."""
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self._ingest.flush()
        except (FleetError, DBAPIError, TimeoutError) as exc:
            _log.warning(
                "pending device states could not be written (%s);"
                " the next start restores them from the journal",
                type(exc).__name__,
            )


def _build_retention(settings: Settings) -> Retention:
    retention = settings.retention
    return {
        SampleKind.PROPERTY: _to_millis(retention.property),
        SampleKind.MEASUREMENT: _to_millis(retention.measurement),
        SampleKind.MEASUREMENT_ERROR: _to_millis(retention.measurement_error),
        SampleKind.EVENT: _to_millis(retention.event),
        SampleKind.LINK: _to_millis(retention.link),
        SampleKind.HEARTBEAT: _to_millis(retention.heartbeat),
    }


def _to_millis(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000
