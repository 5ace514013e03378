"""Where messages go: from publishers to the consumer, to sessions, and to the service itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.broker.letters import Letter
from meshfleet.broker.requests import RequestRules, carries_key
from meshfleet.broker.tree import Filters
from meshfleet.wire.mqtt.packets import Publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from meshfleet.broker.journal import Journal
    from meshfleet.broker.letters import Subscriber
    from meshfleet.broker.retained import Retained

_REMEMBERED: Final = 1 << 17
"""Topics whose way is remembered. Gateways repeat their few topics for ever."""
_LONGEST_TOPIC: Final = 256
"""Characters of such a topic."""
_SHARED: Final = 4096
"""Different ways that are remembered."""


UNFIT: Final = re.compile("[\\x01-\\x1f\\x7f-\\x9f\\ufdd0-\\ufdef\\ufffe\\uffff]")
"""Characters that no topic should have [MQTT-1.5.3]. Many clients hang up when they get one, so nobody does.

A report with one still reaches the consumer, and is acknowledged: its gateway would send it for ever.
"""


class Way(NamedTuple):
    """Where messages on a topic go."""

    is_consumed: bool
    may_be_retained: bool
    is_request: bool
    subscribers: tuple[tuple[Subscriber, int], ...]


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
        self._consumed = [wanted.split("/") for wanted in consumed]
        self._is_consumed = re.compile("|".join(map(_pattern, consumed)), re.DOTALL)
        self._ways: dict[str, Way] = {}
        self._shared: dict[Way, Way] = {}
        """Most topics share their way with many others."""
        self.version = 0
        """Another as soon as somebody subscribes, or no longer does."""

    def subscribe(self, subscriber: Subscriber, wanted: str, qos: int) -> int:
        """Let somebody have what a filter matches, beginning with what is retained there [MQTT-3.3.1-6].

        Tells how much that was.
        """
        self.restore(subscriber, wanted, qos)
        letters = list(self._retained.matching(wanted))
        for letter in letters:
            subscriber.deliver(letter, qos)
        return len(letters)

    def restore(self, subscriber: Subscriber, wanted: str, qos: int) -> None:
        """The same for who had it before: what is retained is no news."""
        self._filters.add(wanted, subscriber, qos)
        self._change()

    def unsubscribe(self, subscriber: Subscriber, wanted: str) -> None:
        """Take that back."""
        self._filters.remove(wanted, subscriber)
        self._change()

    def forget(self, account: str) -> None:
        """Keep nothing any more that an account has retained."""
        for topic in self._retained.topics_of(account):
            self._retained.remove(topic)
            self._journal.save_retained(topic, None)

    def quiet(self, fronts: Iterable[str]) -> str | None:
        """How topics below one of these beginnings begin that only the consumer wants; None: there are none.

        Gateways report on very many topics. Mostly nobody else listens, and then this is all there is to know
        of them. It holds until `version` is another.
        """
        for front in fronts:
            for wanted in self._consumed:
                begin = _below(front, wanted)
                if begin is not None and not self._filters.reach(begin):
                    return begin
        return None

    def way(self, topic: str) -> Way:
        """Where messages on this topic go. Remembered until somebody subscribes or no longer does."""
        known = self._ways.get(topic)
        if known is None:
            known = self._find(topic)
            if len(topic) <= _LONGEST_TOPIC:
                known = self._remember(topic, known)
        return known

    def pass_on(self, message: Publish, account: str) -> None:
        """Take a message to all who want it. Reports go into the round; a retained message is kept."""
        way = self.way(message.topic)
        if way.is_consumed:
            self._journal.round.reports.append(message)
        if message.retain and way.may_be_retained:
            self._retain(message, account)
        if way.subscribers:
            letter = self._letter(message, is_request=way.is_request)
            for subscriber, qos in way.subscribers:
                subscriber.deliver(letter, qos)

    def tell(self, message: Publish) -> None:
        """Take a message to those who want it and are there."""
        subscribers = self.way(message.topic).subscribers
        if subscribers:
            letter = Letter(message, volatile=True)
            for subscriber, qos in subscribers:
                subscriber.deliver(letter, qos)

    def _change(self) -> None:
        self.version += 1
        self._forget()

    def _remember(self, topic: str, way: Way) -> Way:
        if len(self._ways) >= _REMEMBERED or len(self._shared) >= _SHARED:
            self._forget()
        self._ways[topic] = shared = self._shared.setdefault(way, way)
        return shared

    def _forget(self) -> None:
        self._ways.clear()
        self._shared.clear()

    def _find(self, topic: str) -> Way:
        is_consumed = self._is_consumed.fullmatch(topic) is not None
        if UNFIT.search(topic):
            return Way(is_consumed, may_be_retained=False, is_request=False, subscribers=())
        is_request = not is_consumed and self._requests.is_request(topic)
        found = tuple(self._filters.find(topic).items())
        # A request must not fire again whenever its gateway comes.
        return Way(is_consumed, may_be_retained=not is_request, is_request=is_request, subscribers=found)

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


def _pattern(wanted: str) -> str:
    """A filter as a regular expression, for those that are asked about every topic."""
    levels = ["[^/]*" if level == "+" else re.escape(level) for level in wanted.split("/")]
    return "/".join(levels[:-1]) + "(?:/.*)?" if wanted.endswith("/#") else "/".join(levels)


def _below(front: str, wanted: Sequence[str]) -> str | None:
    """How those topics below a beginning begin of which a filter matches all; None: there are none."""
    *place, _ = front.split("/")
    if len(wanted) <= len(place) or any(a not in {"+", b} for a, b in zip(wanted, place, strict=False)):
        return None
    *names, last = wanted[len(place) :]
    return None if last != "#" or "+" in names else "".join(f"{level}/" for level in [*place, *names])
