"""The offsets of gateways' clocks (report-48).

An offset is learned from answers: each carries the gateway's time, and the gateway wrote it between the
moments at which the request left and the answer came. The midpoint is the estimate and half of the round trip
its uncertainty. An answer replaces the estimate when it is at least as exact, or contradicts it.

Reports never set the offset of a gateway that answers, since they may be old. One that is not fresh only
causes another measurement. Gateways that never answer are the exception: when all that one of them reports
for a while is off by the same amount, it is the clock, since what is replayed catches up or falls behind.
Some devices have clocks of their own, so one device of many is not believed as soon as several.

A clock may be set while its gateway is away. So after a gateway has connected, or the service has started, a
known offset is not proved until the gateway answers. Until then it corrects only reports that are fresh by
it; others keep the time that they have. For a gateway that never answers, its fresh reports decide when they
agree for a minute: a replayed report may look fresh by a wrong clock, so a single one decides nothing.

On another broker connections are not known. There an offset is proved until its gateway is no longer heard.
A gateway that connects again before that, with another time, has its clock in doubt by its first report, and
is asked as if the clock had been set while it was connected.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.protocol.ids import mac_from_int
from meshfleet.service.ingest.parsed_batch import FRESH_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_log = logging.getLogger(__name__)

NEGLIGIBLE_OFFSET_MS: Final = 5_000
"""Milliseconds that are not worth a correction."""

_LOGGED_OFFSET_MS: Final = 60_000
"""Milliseconds by which a clock has to be wrong, or to change, to be worth a line in the log."""

_DRIFT_RATIO: Final = 1_000
"""An estimate loses a millisecond of its exactness in so many milliseconds."""

_TRAVEL_TIME_SPREAD_MS: Final = 20_000
"""Milliseconds by which reports of one clock differ in how long they travel."""

_AGREEMENT_MS: Final = 60_000
"""Milliseconds for which all reports of a gateway that never answers must agree. A device is silent after
three times that at the earliest, so none seems silent because a clock was set."""

_SINGLE_DEVICE_AGREEMENT_MS: Final = 30 * 60_000
"""The same when only one of several devices says so. Most of the others are heard once in that time."""


class _Estimate(NamedTuple):
    """How many milliseconds a clock is ahead of ours, give or take `error`, as measured `at` our time."""

    ahead: int
    error: int
    at: int

    def is_better_than(self, new: _Estimate) -> bool:
        """Whether a new estimate agrees with this one and is less exact, though this one has aged."""
        error = self.error + abs(new.at - self.at) // _DRIFT_RATIO
        return abs(new.ahead - self.ahead) <= error + new.error and error < new.error


class _Suspicion(NamedTuple):
    since: int
    behind: int
    """Milliseconds that the reported times are behind ours."""
    source: int
    """The only device that says so; 0: several do, or it is the only one there."""


class _OffsetCheck(NamedTuple):
    """What all fresh reports of a connection have said of an offset that is not proved, since a moment."""

    holds: bool
    since: int
    connection: int | None


class GatewayClocks:
    """Learns how far the clocks of gateways are ahead of ours. All calls bring the time."""

    def __init__(self, connection_of: Callable[[int], int | None] = lambda _gateway: None) -> None:
        """`connection_of` returns the number of a gateway's present or last connection, None if not known."""
        self._connection_of = connection_of
        self.shifts: dict[int, int] = {}
        """Milliseconds to add to the times of gateways whose clocks are wrong; always the same mapping."""
        self.suspects: dict[int, _Suspicion] = {}
        """Gateways of whose last reports none was fresh."""
        self._estimates: dict[int, _Estimate] = {}
        self._confirmed_on: dict[int, int | None] = {}
        """The connection, by gateway, on which its offset was last seen to be right."""
        self._checks: dict[int, _OffsetCheck] = {}
        """What reports of gateways that never answer say of offsets that are not proved."""
        self._responsive: set[int] = set()
        """Gateways that have answered since the start."""
        self._unresponsive: set[int] = set()
        """Gateways that were asked and have never answered."""
        self._logged_offsets: dict[int, int] = {}
        """Offsets that were logged as wrong, until the clock is right again."""

    @property
    def offsets(self) -> Mapping[int, int]:
        """Milliseconds that clocks are ahead of ours, by gateway, as far as they are known."""
        return {gateway: estimate.ahead for gateway, estimate in self._estimates.items()}

    def restore(self, offsets: Mapping[int, int]) -> None:
        """Take over offsets that were known before a start, until they are measured again."""
        for gateway, ahead in offsets.items():
            # However exact it was: the next answer replaces it.
            self._estimates[gateway] = _Estimate(ahead, FRESH_MS, 0)
            self._set_shift(gateway, ahead)

    def remove(self, gateways: Collection[int]) -> None:
        """Drop what is known of gateways that are not claimed any more."""
        for gateway in gateways:
            for known in (
                self.shifts,
                self.suspects,
                self._estimates,
                self._confirmed_on,
                self._checks,
                self._logged_offsets,
            ):
                known.pop(gateway, None)
            self._responsive.discard(gateway)
            self._unresponsive.discard(gateway)

    def measure(self, gateway: int, sent: int, received: int, time: int) -> None:
        """Learn from an answer: when the request left and the answer came by our clock, and its `time`."""
        self._responsive.add(gateway)
        self._unresponsive.discard(gateway)
        self._confirm(gateway)
        new = _Estimate(time - (sent + received) // 2, (received - sent) // 2 + 1, received)
        known = self._estimates.get(gateway)
        if known is not None and known.is_better_than(new):
            self.suspects.pop(gateway, None)
        else:
            self._set_estimate(gateway, new)

    def adjust_local_clock(self, ahead: int) -> None:
        """Take account of our own clock, which was set ahead by so many milliseconds, or back if negative."""
        self.suspects.clear()
        self._checks.clear()
        for gateway, estimate in list(self._estimates.items()):
            self._estimates[gateway] = estimate._replace(ahead=estimate.ahead - ahead, at=estimate.at + ahead)
            self._set_shift(gateway, estimate.ahead - ahead)
        # It is our clock that changed, so this is not logged for each gateway.
        self._logged_offsets = {
            gateway: estimate.ahead
            for gateway, estimate in self._estimates.items()
            if abs(estimate.ahead) > _LOGGED_OFFSET_MS
        }

    def mark_unresponsive(self, gateway: int) -> None:
        """Let reports tell the time of a gateway that does not answer, unless it has answered before."""
        if gateway not in self._responsive:
            self._unresponsive.add(gateway)

    def is_confirmed(self, gateway: int) -> bool:
        """Tell whether the offset of a gateway was seen to be right on its present or last connection."""
        return gateway in self._confirmed_on and self._connection_of(gateway) == self._confirmed_on[gateway]

    def reset_confirmation(self, gateway: int) -> None:
        """Let the offset of a gateway be proved again: it was away, and its clock may have been set."""
        self._confirmed_on.pop(gateway, None)
        self._checks.pop(gateway, None)

    def check_offset(self, gateway: int, now: int, *, holds: bool | None) -> None:
        """Learn that fresh reports agree with an offset that is not proved, or with a clock that is right.

        None: some agree with the one and some with the other. This counts only for gateways that never
        answer, and when all say the same for a minute.
        """
        if gateway not in self._unresponsive or self.is_confirmed(gateway):
            return
        if holds is None:
            self._checks.pop(gateway, None)
            return
        new = _OffsetCheck(holds, now, self._connection_of(gateway))
        check = self._checks.setdefault(gateway, new)
        if check._replace(since=now) != new:
            self._checks[gateway] = new
        elif now - check.since >= _AGREEMENT_MS:
            self._confirm(gateway)
            if not holds:
                self._set_estimate(gateway, _Estimate(0, _TRAVEL_TIME_SPREAD_MS, now))

    def is_fresh(self, gateway: int, time: int, now: int, source: int = 0) -> bool:
        """Tell whether a report of this moment, corrected already, was made less than a minute ago.

        `witness` is the device that sent it, if others behind the gateway could tell as well. A report that
        is not fresh, or comes from the future, puts the clock of the gateway in doubt.
        """
        age = now - time
        is_fresh = -FRESH_MS < age < FRESH_MS
        if is_fresh and (age >= -NEGLIGIBLE_OFFSET_MS or gateway in self._unresponsive):
            self.suspects.pop(gateway, None)
        else:
            # By an offset that is not proved, a report that is not fresh was not corrected.
            shift = self.shifts.get(gateway, 0)
            if shift and not self.is_confirmed(gateway):
                shift = 0
            self._suspect(gateway, _Suspicion(now, age + shift, source))
        return is_fresh

    def gateways_to_measure(self) -> frozenset[int]:
        """Gateways whose clocks should be measured again: in doubt, or wrong by an offset not proved yet."""
        unproved = (
            each for each in self.shifts if each not in self._unresponsive and not self.is_confirmed(each)
        )
        return frozenset(self.suspects).union(unproved)

    def _suspect(self, gateway: int, new: _Suspicion) -> None:
        doubt = self.suspects.get(gateway)
        if doubt is None or abs(new.behind - doubt.behind) > _TRAVEL_TIME_SPREAD_MS:
            self.suspects[gateway] = new
            return
        witness = doubt.source if doubt.source == new.source else 0
        self.suspects[gateway] = doubt._replace(source=witness)
        if gateway in self._unresponsive and new.since - doubt.since >= (
            _SINGLE_DEVICE_AGREEMENT_MS if witness else _AGREEMENT_MS
        ):
            self._confirm(gateway)
            self._set_estimate(
                gateway, _Estimate(-min(new.behind, doubt.behind), _TRAVEL_TIME_SPREAD_MS, new.since)
            )

    def _confirm(self, gateway: int) -> None:
        self._checks.pop(gateway, None)
        self._confirmed_on[gateway] = self._connection_of(gateway)

    def _set_estimate(self, gateway: int, estimate: _Estimate) -> None:
        self.suspects.pop(gateway, None)
        self._estimates[gateway] = estimate
        self._set_shift(gateway, estimate.ahead)
        self._log(gateway, estimate.ahead)

    def _set_shift(self, gateway: int, ahead: int) -> None:
        if abs(ahead) <= NEGLIGIBLE_OFFSET_MS:
            self.shifts.pop(gateway, None)
        else:
            self.shifts[gateway] = -ahead

    def _log(self, gateway: int, ahead: int) -> None:
        """Write to the log that a clock is wrong, once until it changes."""
        logged = self._logged_offsets.get(gateway)
        if abs(ahead) > _LOGGED_OFFSET_MS:
            if logged is None or abs(ahead - logged) > _LOGGED_OFFSET_MS:
                self._logged_offsets[gateway] = ahead
                where = "ahead of" if ahead > 0 else "behind"
                _log.warning(
                    "the clock of gateway %s is %d s %s ours; its times are corrected",
                    mac_from_int(gateway),
                    round(abs(ahead) / 1000),
                    where,
                )
        elif logged is not None:
            del self._logged_offsets[gateway]
            _log.info("the clock of gateway %s is right again", mac_from_int(gateway))
