"""Routes messages from publishers to the report consumer, to sessions and to callbacks of the service."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.mqtt.broker.outgoing_message import OutgoingMessage
from meshfleet.mqtt.broker.request_expiry import RequestTopicRules, contains_key
from meshfleet.mqtt.broker.topic_tree import SubscriptionTree
from meshfleet.mqtt.codec.packets import Publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from meshfleet.mqtt.broker.group_commit import GroupCommit
    from meshfleet.mqtt.broker.outgoing_message import Subscriber
    from meshfleet.mqtt.broker.retained_messages import RetainedMessageStore

_MAX_CACHED_ROUTES: Final = 1 << 17
"""Maximum topics whose route is cached. Gateways publish to the same few topics many times."""
_MAX_CACHED_TOPIC_CHARS: Final = 256
"""Maximum characters of a topic whose route is cached."""
_MAX_DISTINCT_ROUTES: Final = 4096
"""Maximum different routes in the cache."""


DISALLOWED_CHARACTERS: Final = re.compile("[\\x01-\\x1f\\x7f-\\x9f\\ufdd0-\\ufdef\\ufffe\\uffff]")
"""Characters that topics should not contain [MQTT-1.5.3]. Many clients disconnect when they receive one, so
messages on such topics are not delivered to subscribers. A report on such a topic still reaches the consumer
and is acknowledged, or its gateway would send it forever."""


class TopicRoute(NamedTuple):
    """Destinations of the messages on a topic: report consumer, retained store, subscribers with QoS."""

    is_consumed: bool
    may_be_retained: bool
    is_request: bool
    subscribers: tuple[tuple[Subscriber, int], ...]


class CallbackSubscriber:
    """Subscriber inside the service, which receives messages through a callback."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[Publish], None]) -> None:
        self._callback = callback

    def deliver(self, message: OutgoingMessage, qos: int) -> None:
        """Call the callback with the message, at the QoS of the message or at `qos` if that is lower."""
        self._callback(Publish(message.topic, message.payload, min(message.qos, qos), message.retain))


class MessageRouter:
    """Routes messages to the report consumer and to subscribers. Callers check permissions beforehand."""

    def __init__(
        self,
        group_commit: GroupCommit,
        retained: RetainedMessageStore,
        *,
        consumed_filters: Sequence[str],
        request_rules: RequestTopicRules,
        monotonic_clock: Callable[[], int],
    ) -> None:
        self._group_commit = group_commit
        self._retained = retained
        self._request_rules = request_rules
        self._monotonic_clock = monotonic_clock
        self._subscriptions: SubscriptionTree[Subscriber] = SubscriptionTree()
        self._consumed_filters = [topic_filter.split("/") for topic_filter in consumed_filters]
        self._consumed_pattern = re.compile("|".join(map(_filter_to_regex, consumed_filters)), re.DOTALL)
        self._routes: dict[str, TopicRoute] = {}
        self._distinct_routes: dict[TopicRoute, TopicRoute] = {}
        """One shared instance per distinct route, to save memory: many topics have equal routes."""
        self.routes_version = 0
        """Counter that increases with every change of a subscription."""

    def subscribe(self, subscriber: Subscriber, topic_filter: str, qos: int) -> int:
        """Add a subscription and deliver the retained messages that match its filter [MQTT-3.3.1-6].

        Return the number of delivered retained messages.
        """
        self.restore_subscription(subscriber, topic_filter, qos)
        messages = list(self._retained.find_matching(topic_filter))
        for message in messages:
            subscriber.deliver(message, qos)
        return len(messages)

    def restore_subscription(self, subscriber: Subscriber, topic_filter: str, qos: int) -> None:
        """Add a subscription of a resumed session without delivering retained messages."""
        self._subscriptions.add(topic_filter, subscriber, qos)
        self._invalidate_routes()

    def unsubscribe(self, subscriber: Subscriber, topic_filter: str) -> None:
        """Remove the subscription of a subscriber to a topic filter."""
        self._subscriptions.remove(topic_filter, subscriber)
        self._invalidate_routes()

    def delete_retained(self, account: str) -> None:
        """Delete all retained messages that an account published."""
        for topic in self._retained.topics_by_account(account):
            self._retained.remove(topic)
            self._group_commit.save_retained(topic, None)

    def find_consumer_only_prefix(self, prefixes: Iterable[str]) -> str | None:
        """Return a prefix below one of `prefixes` whose topics only the report consumer receives, or None.

        Gateways report on very many topics, usually without subscribers: a check of this prefix replaces the
        look-up of each topic. The result is valid until `routes_version` changes.
        """
        for prefix in prefixes:
            for filter_levels in self._consumed_filters:
                covered = _covered_prefix(prefix, filter_levels)
                if covered is not None and not self._subscriptions.may_match_below(covered):
                    return covered
        return None

    def find_route(self, topic: str) -> TopicRoute:
        """Return the route of a topic, from the cache if the topic is in it."""
        route = self._routes.get(topic)
        if route is None:
            route = self._build_route(topic)
            if len(topic) <= _MAX_CACHED_TOPIC_CHARS:
                route = self._cache_route(topic, route)
        return route

    def route(self, message: Publish, account: str) -> None:
        """Deliver a message to the subscribers of its topic.

        Add a report to the current commit batch, and store a retained message.
        """
        route = self.find_route(message.topic)
        if route.is_consumed:
            self._group_commit.batch.reports.append(message)
        if message.retain and route.may_be_retained:
            self._retain(message, account)
        if route.subscribers:
            outgoing = self._build_outgoing(message, is_request=route.is_request)
            for subscriber, qos in route.subscribers:
                subscriber.deliver(outgoing, qos)

    def route_to_connected(self, message: Publish) -> None:
        """Deliver a message to connected subscribers only, without persisting it."""
        subscribers = self.find_route(message.topic).subscribers
        if subscribers:
            outgoing = OutgoingMessage(message, volatile=True)
            for subscriber, qos in subscribers:
                subscriber.deliver(outgoing, qos)

    def _invalidate_routes(self) -> None:
        self.routes_version += 1
        self._clear_routes()

    def _cache_route(self, topic: str, route: TopicRoute) -> TopicRoute:
        if len(self._routes) >= _MAX_CACHED_ROUTES or len(self._distinct_routes) >= _MAX_DISTINCT_ROUTES:
            self._clear_routes()
        self._routes[topic] = shared = self._distinct_routes.setdefault(route, route)
        return shared

    def _clear_routes(self) -> None:
        self._routes.clear()
        self._distinct_routes.clear()

    def _build_route(self, topic: str) -> TopicRoute:
        is_consumed = self._consumed_pattern.fullmatch(topic) is not None
        if DISALLOWED_CHARACTERS.search(topic):
            return TopicRoute(is_consumed, may_be_retained=False, is_request=False, subscribers=())
        is_request = not is_consumed and self._request_rules.is_request(topic)
        subscribers = tuple(self._subscriptions.find_subscribers(topic).items())
        # A retained request would be carried out again whenever its gateway connects.
        return TopicRoute(
            is_consumed, may_be_retained=not is_request, is_request=is_request, subscribers=subscribers
        )

    def _build_outgoing(self, message: Publish, *, is_request: bool) -> OutgoingMessage:
        if not is_request:
            return OutgoingMessage(message)
        expires_at = self._request_rules.expiry_time(self._monotonic_clock())
        return OutgoingMessage(message, expires_at=expires_at, volatile=contains_key(message.payload))

    def _retain(self, message: Publish, account: str) -> None:
        # An empty payload deletes the retained message [MQTT-3.3.1-11]. So does a message beyond the limits:
        # the old one is outdated.
        row = self._retained.put(message, account) if message.payload else None
        if row is not None or self._retained.remove(message.topic):
            self._group_commit.save_retained(message.topic, row)


def _filter_to_regex(topic_filter: str) -> str:
    """Convert a topic filter to a regular expression."""
    levels = ["[^/]*" if level == "+" else re.escape(level) for level in topic_filter.split("/")]
    return "/".join(levels[:-1]) + "(?:/.*)?" if topic_filter.endswith("/#") else "/".join(levels)


def _covered_prefix(prefix: str, filter_levels: Sequence[str]) -> str | None:
    """Return a prefix at or below `prefix`, below which a topic filter matches every topic, or None."""
    *parent, _ = prefix.split("/")
    if len(filter_levels) <= len(parent) or any(
        a not in {"+", b} for a, b in zip(filter_levels, parent, strict=False)
    ):
        return None
    *names, last = filter_levels[len(parent) :]
    return None if last != "#" or "+" in names else "".join(f"{level}/" for level in [*parent, *names])
