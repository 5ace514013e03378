"""How much clients may ask of the broker. What is said here holds against those who mean harm too."""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """The most that the broker does for its clients."""

    connections: int = 10_000
    """At once, of all clients."""
    connections_per_address: int = 2000
    """At once, from one network address."""
    connections_per_account: int = 20
    """At once, with the credentials of one account."""
    failed_connections: int = 50
    """Per second, from one network address: connections that end without a login."""
    connect_seconds: int = 10
    """From the beginning of a connection until its CONNECT is there."""
    packet_size: int = 262_144
    """Bytes of one packet that a client sends."""
    subscriptions: int = 100
    """Filters of one client."""
    in_flight: int = 100
    """Messages sent to one client that it has not acknowledged."""
    queue_bytes: int = 67_108_864
    """Bytes that wait for one client: sent and not acknowledged, or queued."""
    queues_bytes: int = 268_435_456
    """Bytes that wait for all clients together."""
    publish_rate: int = 2000
    """Packets per second from one client; who sends more is read more slowly."""
    sessions_per_account: int = 20
    """Sessions that outlast their connections, of one account."""
    session_age: int = 604_800
    """Seconds that a client may be absent before its session is forgotten."""
    retained: int = 10_000
    """Retained messages, on all topics."""
