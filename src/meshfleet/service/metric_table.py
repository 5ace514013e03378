"""All Prometheus metrics that are read from other parts of the service at each scrape (rest-161).

Names of metrics and labels are part of the interface: dashboards use them.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from meshfleet.service.live.event import encode_websocket_frame
from meshfleet.service.metrics import IntegrationReaders

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.mqtt.broker import Broker
    from meshfleet.service.backfill.acknowledger import SampleAcknowledger
    from meshfleet.service.firmware.image_requests import ImageRequestHandler
    from meshfleet.service.gateways.versions import GatewayVersions
    from meshfleet.service.ingest.counters import IngestCounters
    from meshfleet.service.live.hub import EventHub
    from meshfleet.service.metrics import Metrics
    from meshfleet.service.presence.tracker import PresenceTracker
    from meshfleet.service.requests.dispatcher import RequestDispatcher
    from meshfleet.service.requests.history import RequestHistory
    from meshfleet.service.requests.rpc import RpcClient
    from meshfleet.service.server_certificate import ServerCertificate
    from meshfleet.service.storage.monitor import StorageMonitor

_IMAGE_REQUEST_OUTCOMES: Final = ("answered", "dropped", "malformed", "unknown")


def add_broker_metrics(metrics: Metrics, broker: Broker) -> None:
    """Add the metrics of the embedded broker."""
    quotas, connections, handshake = broker.quotas, broker.connections, broker.connect_handler
    gauge, counter = metrics.add_gauge, metrics.add_counter
    gauge("mqtt_connections", "Open MQTT connections.", lambda: len(connections))
    gauge(
        "mqtt_sessions",
        "MQTT sessions, including those of disconnected clients.",
        lambda: len(broker.sessions),
    )
    gauge("mqtt_retained", "Retained messages.", lambda: len(broker.retained))
    gauge("mqtt_owed_bytes", "Bytes queued for MQTT clients.", lambda: quotas.queued_bytes)
    counter("mqtt_received", "Messages published by MQTT clients.", lambda: quotas.received_count)
    counter("mqtt_delivered", "Messages sent to MQTT clients.", lambda: quotas.delivered_count)
    counter(
        "mqtt_cut_off",
        "MQTT clients disconnected because they read too slowly.",
        lambda: quotas.cut_off_count,
    )
    counter(
        "mqtt_turned_away",
        "MQTT connections closed before CONNECT because a limit was reached.",
        lambda: connections.rejected_count,
    )
    counter("mqtt_admitted", "MQTT clients accepted at CONNECT.", lambda: handshake.admitted_count)
    counter("mqtt_refused", "MQTT clients refused at CONNECT.", lambda: handshake.refused_count)
    counter(
        "mqtt_dropped",
        "Messages dropped instead of delivered to MQTT clients, by reason.",
        lambda: quotas.dropped_counts,
        "reason",
    )


def add_ingest_metrics(metrics: Metrics, counters: IngestCounters) -> None:
    """Add the metrics of report ingest."""
    counter = metrics.add_counter
    metrics.register(counters.lag)
    counter("reports", "Committed reports.", lambda: counters.reports, "kind")
    counter("rejects", "Messages that were rejected as reports.", lambda: counters.rejects, "code")
    counter("samples", "Committed samples.", lambda: counters.samples)
    counter("strays", "Reports with an implausible time.", lambda: counters.implausible_times)
    counter("batches", "Committed batches of reports.", lambda: counters.batches)
    counter(
        "following_failures",
        "Committed batches that a subscriber failed to process.",
        lambda: counters.subscriber_failures,
    )


def add_backfill_metrics(metrics: Metrics, acknowledger: SampleAcknowledger) -> None:
    """Add the metrics of sample acknowledgements and gaps."""
    gauge, counter = metrics.add_gauge, metrics.add_counter
    gaps, counts = acknowledger.gap_index, acknowledger.counts
    gauge("holes", "Gaps in series of samples.", lambda: {"open": gaps.open, "lost": gaps.lost}, "state")
    gauge("acknowledged_series", "Series whose samples are acknowledged.", lambda: len(acknowledger.series))
    gauge(
        "series_unchecked",
        "Series without gap checks because their `seq` does not count samples.",
        lambda: gaps.unchecked,
    )
    counter("acks", "Acknowledgements of samples.", lambda: counts.sent)
    counter("backfills", "Acknowledgements that requested missing samples.", lambda: counts.backfills)
    counter("holes_found", "Gaps found.", lambda: counts.gaps)


def add_gateway_metrics(metrics: Metrics, versions: GatewayVersions) -> None:
    """Add the metrics of the features that gateways support."""
    metrics.add_gauge(
        "gateways_acking",
        "Gateways that support acknowledgements of samples.",
        lambda: len(versions.ack_capable),
    )


def add_presence_metrics(metrics: Metrics, tracker: PresenceTracker) -> None:
    """Add the metrics of connected devices and gateways, and of the clocks of gateways."""
    gauge, counter = metrics.add_gauge, metrics.add_counter
    clocks = tracker.clocks
    gauge("gateways_connected", "Gateways that are connected.", lambda: tracker.connected_gateway_count)
    gauge("clocks_wrong", "Gateways whose clocks are known to be wrong.", lambda: len(clocks.shifts))
    gauge(
        "clock_offset_max_seconds",
        "Largest known offset of a gateway's clock, ahead or behind.",
        lambda: max(map(abs, clocks.offsets.values()), default=0) / 1000,
    )
    counter(
        "connectivity_changes",
        "Connections and disconnections of devices and gateways.",
        lambda: tracker.change_counts,
        "cause",
    )


def add_request_metrics(
    metrics: Metrics, rpc: RpcClient, dispatcher: RequestDispatcher, history: RequestHistory
) -> None:
    """Add the metrics of requests to gateways and devices."""
    gauge, counter = metrics.add_gauge, metrics.add_counter
    counter(
        "requests",
        "Requests over REST, by operation and outcome.",
        lambda: dispatcher.outcomes,
        "operation",
        "outcome",
    )
    counter(
        "responses",
        "Responses of gateways, by how they matched a request.",
        lambda: rpc.response_counts,
        "fate",
    )
    counter(
        "requests_unrecorded",
        "Requests missing in the history: the database was unavailable for too long or rejected them.",
        lambda: history.dropped,
    )
    gauge(
        "requests_pending",
        "Requests waiting for their responses, from REST, jobs and the service itself.",
        lambda: rpc.pending,
    )
    gauge(
        "requests_queued",
        "Pending requests that wait in the queue of a gateway and are not sent yet.",
        lambda: rpc.queued,
    )


def add_firmware_metrics(metrics: Metrics, handler: ImageRequestHandler) -> None:
    """Add the metrics of image requests by gateways."""
    metrics.add_counter(
        "firmware_questions",
        "Requests of gateways for firmware images, by outcome.",
        lambda: {outcome: handler.outcomes[outcome] for outcome in _IMAGE_REQUEST_OUTCOMES},
        "outcome",
    )


def add_live_metrics(metrics: Metrics, hub: EventHub) -> None:
    """Add the metrics of live events."""
    gauge, counter = metrics.add_gauge, metrics.add_counter

    def count_subscribers() -> dict[str, float]:
        sockets = sum(each.encoder is encode_websocket_frame for each in list(hub.subscribers))
        return {"websocket": sockets, "stream": len(hub.subscribers) - sockets}

    gauge("live_listeners", "Connected subscribers of live events.", count_subscribers, "door")
    counter("live_events", "Published live events.", lambda: hub.published, "type")
    counter("live_resyncs", "Resyncs sent to single subscribers that missed events.", lambda: hub.resyncs)


def add_build_metrics(metrics: Metrics, *, is_sqlite: bool) -> None:
    """Add the version of the service and the kind of its database."""
    metrics.add_gauge(
        "build_info",
        "Always 1, with the version of Meshfleet and the kind of its database.",
        lambda: {(version("meshfleet"), "sqlite" if is_sqlite else "postgresql"): 1},
        "version",
        "database",
    )


def add_certificate_metrics(metrics: Metrics, certificate: ServerCertificate) -> None:
    """Add when the certificate of the listeners ends."""
    metrics.add_gauge(
        "certificate_end_timestamp_seconds",
        "Time at which a certificate ends. Absent without TLS.",
        lambda: {} if certificate.ends_at is None else {"server": certificate.ends_at},
        "use",
    )


def add_integration_metrics(
    metrics: Metrics, name: str, read_queue: Callable[[], float], read_failures: Callable[[], float]
) -> None:
    """Add the metrics of an integration called `name`, such as `influx`.

    `read_queue` returns the number of items that wait to be sent, `read_failures` the number of failed
    attempts since the service started. Both are called at each scrape, in the event loop.
    """
    metrics.integrations[name] = IntegrationReaders(read_queue, read_failures)


def add_storage_metrics(metrics: Metrics, monitor: StorageMonitor) -> None:
    """Add the metrics of the size of the data, from its newest measurement."""

    def read_free_bytes() -> dict[tuple[str, ...], float]:
        free = None if monitor.newest is None else monitor.newest.measurement.free
        return {} if free is None else {(): free}

    def read_full_time() -> dict[tuple[str, ...], float]:
        full_at = None if monitor.newest is None else monitor.newest.forecast.full_at
        return {} if full_at is None else {(): full_at / 1000}

    metrics.add_gauge(
        "data_bytes",
        "Bytes of each part of the data.",
        lambda: {} if monitor.newest is None else monitor.newest.measurement.sizes,
        "part",
    )
    metrics.add_gauge(
        "disk_free_bytes", "Free bytes on the disk of the data; absent with PostgreSQL.", read_free_bytes
    )
    metrics.add_gauge(
        "disk_full_timestamp_seconds",
        "Time at which the disk of the data is full; absent if that is not foreseen.",
        read_full_time,
    )
