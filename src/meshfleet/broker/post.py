"""Where messages go: from publishers to the consumer, to sessions, and to the service itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.broker.letters import Letter
from meshfleet.broker.requests import RequestRules, carries_key
from meshfleet.broker.tree import Filters
from meshfleet.wire.mqtt.packets import Publish

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meshfleet.broker.journal import Journal
    from meshfleet.broker.letters import Subscriber
    from meshfleet.broker.retained import Retained

_REMEMBERED: Final = 1 << 17
"""Topics whose way is remembered. Gateways repeat their few topics for ever."""


class Way(NamedTuple):
    """Where messages on a topic go."""

    is_consumed: bool
    is_request: bool
    subscribers: tuple[tuple[Subscriber, int], ...]


ONLY_CONSUMED: Final = Way(is_consumed=True, is_request=False, subscribers=())
"""The way of most messages."""


class Listener:
    """A part of the service that wants messages."""

    __slots__ = ("_heard",)

    def __init__(self, heard: Callable[[Publish], None]) -> None:
        self._heard = heard

    def deliver(self, letter: Letter, qos: int) -> None:
        """Pass it on at once."""
        self._heard(Publish(letter.topic, letter.payload, min(letter.qos, qos), letter.retain))


class Post:
    """Knows who wants what. Access was decided before."""

    def __init__(
        self,
        journal: Journal,
        retained: Retained,
        *,
        consumed: Sequence[str],
        requests: RequestRules,
        now: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._retained = retained
        self._requests = requests
        self._now = now
        self._filters: Filters[Subscriber] = Filters()
        self._consumed: Filters[str] = Filters()
        self.ways: dict[str, Way] = {}
        for wanted in consumed:
            self._consumed.add(wanted, wanted, 1)

    def subscribe(self, subscriber: Subscriber, wanted: str, qos: int) -> None:
        """Let somebody have what a filter matches, beginning with what is retained there [MQTT-3.3.1-6]."""
        self._filters.add(wanted, subscriber, qos)
        self.ways.clear()
        for letter in list(self._retained.matching(wanted)):
            subscriber.deliver(letter, qos)

    def restore(self, subscriber: Subscriber, wanted: str, qos: int) -> None:
        """The same for who had it before: what is retained is no news."""
        self._filters.add(wanted, subscriber, qos)
        self.ways.clear()

    def unsubscribe(self, subscriber: Subscriber, wanted: str) -> None:
        """Take that back."""
        self._filters.remove(wanted, subscriber)
        self.ways.clear()

    def way(self, topic: str) -> Way:
        """Where messages on this topic go. Remembered until somebody subscribes or no longer does."""
        known = self.ways.get(topic)
        if known is None:
            known = self._find(topic)
            if len(self.ways) >= _REMEMBERED:
                self.ways.clear()
            self.ways[topic] = known
        return known

    def pass_on(self, message: Publish, account: str) -> None:
        """Take a message to all who want it. Reports go into the round; a retained message is kept."""
        way = self.way(message.topic)
        if way.is_consumed:
            self._journal.round.reports.append(message)
        if message.retain and not way.is_request:  # a request must not fire again whenever a gateway comes
            self._retain(message, account)
        if way.subscribers:
            letter = self._letter(message, is_request=way.is_request)
            for subscriber, qos in way.subscribers:
                subscriber.deliver(letter, qos)

    def _find(self, topic: str) -> Way:
        found = tuple(self._filters.find(topic).items())
        way = Way(bool(self._consumed.find(topic)), self._requests.is_request(topic), found)
        return ONLY_CONSUMED if way == ONLY_CONSUMED else way

    def _letter(self, message: Publish, *, is_request: bool) -> Letter:
        if not is_request:
            return Letter(message)
        until = self._requests.until(self._now())
        return Letter(message, until=until, volatile=carries_key(message.payload))

    def _retain(self, message: Publish, account: str) -> None:
        # An empty message is not kept [MQTT-3.3.1-11], and one without a place neither: what was there goes.
        row = self._retained.keep(message, account) if message.payload else None
        if row is not None or self._retained.remove(message.topic):
            self._journal.save_retained(message.topic, row)
