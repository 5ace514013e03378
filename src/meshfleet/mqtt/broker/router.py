"""Where messages go: from publishers to the consumer, to sessions, and to the service itself."""

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
"""Topics whose way is remembered. Gateways repeat their few topics for ever."""
_MAX_CACHED_TOPIC_CHARS: Final = 256
"""Characters of such a topic."""
_MAX_DISTINCT_ROUTES: Final = 4096
"""Different ways that are remembered."""


DISALLOWED_CHARACTERS: Final = re.compile("[\\x01-\\x1f\\x7f-\\x9f\\ufdd0-\\ufdef\\ufffe\\uffff]")
"""Characters that no topic should have [MQTT-1.5.3]. Many clients hang up when they get one, so nobody does.

A report with one still reaches the consumer, and is acknowledged: its gateway would send it for ever.
"""


class TopicRoute(NamedTuple):
    """Where messages on a topic go."""

    is_consumed: bool
    may_be_retained: bool
    is_request: bool
    subscribers: tuple[tuple[Subscriber, int], ...]


class CallbackSubscriber:
    """A part of the service that wants messages."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[Publish], None]) -> None:
        self._callback = callback

    def deliver(self, message: OutgoingMessage, qos: int) -> None:
        """Pass it on at once."""
        self._callback(Publish(message.topic, message.payload, min(message.qos, qos), message.retain))


class MessageRouter:
    """Knows who wants what. Access was decided before."""

    def __init__(
        self,
        group_commit: GroupCommit,
        retained: RetainedMessageStore,
        *,
        consumed_filters: Sequence[str],
        request_rules: RequestTopicRules,
        steady_clock: Callable[[], int],
    ) -> None:
        self._group_commit = group_commit
        self._retained = retained
        self._request_rules = request_rules
        self._steady_clock = steady_clock
        self._subscriptions: SubscriptionTree[Subscriber] = SubscriptionTree()
        self._consumed_filters = [wanted.split("/") for wanted in consumed_filters]
        self._consumed_pattern = re.compile("|".join(map(_to_regex, consumed_filters)), re.DOTALL)
        self._routes: dict[str, TopicRoute] = {}
        self._distinct_routes: dict[TopicRoute, TopicRoute] = {}
        """Most topics share their way with many others."""
        self.routes_version = 0
        """Another as soon as somebody subscribes, or no longer does."""

    def subscribe(self, subscriber: Subscriber, topic_filter: str, qos: int) -> int:
        """Let somebody have what a filter matches, beginning with what is retained there [MQTT-3.3.1-6].

        Tells how much that was.
        """
        self.restore_subscription(subscriber, topic_filter, qos)
        letters = list(self._retained.find_matching(topic_filter))
        for letter in letters:
            subscriber.deliver(letter, qos)
        return len(letters)

    def restore_subscription(self, subscriber: Subscriber, topic_filter: str, qos: int) -> None:
        """The same for who had it before: what is retained is no news."""
        self._subscriptions.add(topic_filter, subscriber, qos)
        self._invalidate_routes()

    def unsubscribe(self, subscriber: Subscriber, topic_filter: str) -> None:
        """Take that back."""
        self._subscriptions.remove(topic_filter, subscriber)
        self._invalidate_routes()

    def delete_retained(self, account: str) -> None:
        """Keep nothing any more that an account has retained."""
        for topic in self._retained.topics_by_account(account):
            self._retained.remove(topic)
            self._group_commit.save_retained(topic, None)

    def find_consumer_only_prefix(self, prefixes: Iterable[str]) -> str | None:
        """How topics below one of these beginnings begin that only the consumer wants; None: there are none.

        Gateways report on very many topics. Mostly nobody else listens, and then this is all there is to know
        of them. It holds until `version` is another.
        """
        for front in prefixes:
            for wanted in self._consumed_filters:
                begin = _covered_prefix(front, wanted)
                if begin is not None and not self._subscriptions.may_match_below(begin):
                    return begin
        return None

    def find_route(self, topic: str) -> TopicRoute:
        """Where messages on this topic go. Remembered until somebody subscribes or no longer does."""
        known = self._routes.get(topic)
        if known is None:
            known = self._build_route(topic)
            if len(topic) <= _MAX_CACHED_TOPIC_CHARS:
                known = self._cache_route(topic, known)
        return known

    def route(self, message: Publish, account: str) -> None:
        """Take a message to all who want it. Reports go into the round; a retained message is kept."""
        way = self.find_route(message.topic)
        if way.is_consumed:
            self._group_commit.batch.reports.append(message)
        if message.retain and way.may_be_retained:
            self._retain(message, account)
        if way.subscribers:
            letter = self._build_outgoing(message, is_request=way.is_request)
            for subscriber, qos in way.subscribers:
                subscriber.deliver(letter, qos)

    def route_to_connected(self, message: Publish) -> None:
        """Take a message to those who want it and are there."""
        subscribers = self.find_route(message.topic).subscribers
        if subscribers:
            letter = OutgoingMessage(message, volatile=True)
            for subscriber, qos in subscribers:
                subscriber.deliver(letter, qos)

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
        found = tuple(self._subscriptions.find_subscribers(topic).items())
        # A request must not fire again whenever its gateway comes.
        return TopicRoute(
            is_consumed, may_be_retained=not is_request, is_request=is_request, subscribers=found
        )

    def _build_outgoing(self, message: Publish, *, is_request: bool) -> OutgoingMessage:
        if not is_request:
            return OutgoingMessage(message)
        until = self._request_rules.expiry_time(self._steady_clock())
        return OutgoingMessage(message, expires_at=until, volatile=contains_key(message.payload))

    def _retain(self, message: Publish, account: str) -> None:
        # An empty message is not kept [MQTT-3.3.1-11], and one without a place neither: what was there goes.
        row = self._retained.put(message, account) if message.payload else None
        if row is not None or self._retained.remove(message.topic):
            self._group_commit.save_retained(message.topic, row)


def _to_regex(topic_filter: str) -> str:
    """A filter as a regular expression, for those that are asked about every topic."""
    levels = ["[^/]*" if level == "+" else re.escape(level) for level in topic_filter.split("/")]
    return "/".join(levels[:-1]) + "(?:/.*)?" if topic_filter.endswith("/#") else "/".join(levels)


def _covered_prefix(prefix: str, filter_levels: Sequence[str]) -> str | None:
    """How those topics below a beginning begin of which a filter matches all; None: there are none."""
    *place, _ = prefix.split("/")
    if len(filter_levels) <= len(place) or any(
        a not in {"+", b} for a, b in zip(filter_levels, place, strict=False)
    ):
        return None
    *names, last = filter_levels[len(place) :]
    return None if last != "#" or "+" in names else "".join(f"{level}/" for level in [*place, *names])
