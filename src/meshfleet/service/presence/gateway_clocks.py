"""Offsets of the gateways' clocks (report-48).

An offset is measured with responses: each contains the gateway's time, written between the moments at which
the request was sent and the response was received. The midpoint is the estimate and half of the round trip
its uncertainty. A response replaces the estimate when it is at least as exact, or contradicts it.

Reports never set the offset of a gateway that responds, because they may be old. A report that is not fresh
only triggers another measurement. Gateways that never respond are the exception: when all reports of such a
gateway are off by the same amount for a while, its clock is wrong, because the delay of replayed reports
would change. Some devices have clocks of their own, so one device of many needs more time to be trusted than
several.

A clock may be set while its gateway is disconnected. So after a gateway has connected, or the service has
started, a known offset is unconfirmed until the gateway responds. Until then it corrects only reports that
become fresh by it; others keep their time. For a gateway that never responds, its fresh reports decide when
they agree for a minute: a replayed report may look fresh by a wrong clock, so a single one decides nothing.

On an external broker, connections are unknown. There an offset is confirmed until the gateway's reports stop.
If a gateway reconnects before that with another time, its first report makes its clock suspect, and it is
measured as if the clock had been set while it was connected.
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
"""Offset in milliseconds that is not corrected."""

_LOGGED_OFFSET_MS: Final = 60_000
"""Milliseconds by which a clock must be wrong, or change, to be logged."""

_DRIFT_RATIO: Final = 1_000
"""Milliseconds in which an estimate loses one millisecond of its accuracy."""

_TRAVEL_TIME_SPREAD_MS: Final = 20_000
"""Milliseconds by which the transmission times of reports with the same clock differ."""

_AGREEMENT_MS: Final = 60_000
"""Milliseconds for which all reports of a gateway that never responds must agree.

A device is silent after three times that at the earliest, so none seems silent because a clock was set.
"""

_SINGLE_DEVICE_AGREEMENT_MS: Final = 30 * 60_000
"""Milliseconds for which reports must agree if only one of several devices sends them.

Most of the other devices report once in that time.
"""


class _Estimate(NamedTuple):
    """Milliseconds by which a clock is ahead of the local one, ± `error`, measured `at` local time."""

    ahead: int
    error: int
    at: int

    def is_better_than(self, new: _Estimate) -> bool:
        """Return whether `new` agrees with this estimate but is less exact than this aged one."""
        error = self.error + abs(new.at - self.at) // _DRIFT_RATIO
        return abs(new.ahead - self.ahead) <= error + new.error and error < new.error


class _Suspicion(NamedTuple):
    since: int
    behind: int
    """Milliseconds by which the reported times are behind the local clock."""
    source: int
    """Only device that reports so; 0 if several do, or if it is the gateway's only device."""


class _OffsetCheck(NamedTuple):
    """Agreement of all fresh reports of a connection with an unconfirmed offset, since a time."""

    holds: bool
    since: int
    connection: int | None


class GatewayClocks:
    """Estimates of how far the clocks of gateways are ahead of the local one. The caller passes the time."""

    def __init__(self, connection_of: Callable[[int], int | None] = lambda _gateway: None) -> None:
        """Create without estimates.

        `connection_of` returns the number of a gateway's current or last connection, or None if it is
        unknown.
        """
        self._connection_of = connection_of
        self.shifts: dict[int, int] = {}
        """Milliseconds to add to the times of gateways with wrong clocks.

        The mapping object never changes.
        """
        self.suspects: dict[int, _Suspicion] = {}
        """Gateways whose last reports were not fresh."""
        self._estimates: dict[int, _Estimate] = {}
        self._confirmed_on: dict[int, int | None] = {}
        """Connection on which a gateway's offset was last confirmed."""
        self._checks: dict[int, _OffsetCheck] = {}
        """Pending checks of unconfirmed offsets of gateways that never respond."""
        self._responsive: set[int] = set()
        """Gateways that have responded since the start."""
        self._unresponsive: set[int] = set()
        """Gateways that were sent requests and have never responded."""
        self._logged_offsets: dict[int, int] = {}
        """Offsets that were logged as wrong, until the clock is right again."""

    @property
    def offsets(self) -> Mapping[int, int]:
        """Milliseconds by which clocks are ahead of the local one, by gateway, as far as they are known."""
        return {gateway: estimate.ahead for gateway, estimate in self._estimates.items()}

    def restore(self, offsets: Mapping[int, int]) -> None:
        """Load stored offsets at the start. They are unconfirmed until they are measured again."""
        for gateway, ahead in offsets.items():
            # With an error so large that the next response replaces it.
            self._estimates[gateway] = _Estimate(ahead, FRESH_MS, 0)
            self._set_shift(gateway, ahead)

    def remove(self, gateways: Collection[int]) -> None:
        """Discard all data of gateways that are no longer claimed."""
        for gateway in gateways:
            for mapping in (
                self.shifts,
                self.suspects,
                self._estimates,
                self._confirmed_on,
                self._checks,
                self._logged_offsets,
            ):
                mapping.pop(gateway, None)
            self._responsive.discard(gateway)
            self._unresponsive.discard(gateway)

    def measure(self, gateway: int, sent: int, received: int, time: int) -> None:
        """Update the estimate from a response with the gateway's `time`.

        `sent` and `received` are the local times of request and response.
        """
        self._responsive.add(gateway)
        self._unresponsive.discard(gateway)
        self._confirm(gateway)
        new = _Estimate(time - (sent + received) // 2, (received - sent) // 2 + 1, received)
        current = self._estimates.get(gateway)
        if current is not None and current.is_better_than(new):
            self.suspects.pop(gateway, None)
        else:
            self._set_estimate(gateway, new)

    def adjust_local_clock(self, ahead: int) -> None:
        """Correct all estimates after the local clock was set.

        `ahead` is the number of milliseconds by which it was set ahead, negative if it was set back.
        """
        self.suspects.clear()
        self._checks.clear()
        for gateway, estimate in list(self._estimates.items()):
            self._estimates[gateway] = estimate._replace(ahead=estimate.ahead - ahead, at=estimate.at + ahead)
            self._set_shift(gateway, estimate.ahead - ahead)
        # The local clock changed, so this is not logged for each gateway.
        self._logged_offsets = {
            gateway: estimate.ahead
            for gateway, estimate in self._estimates.items()
            if abs(estimate.ahead) > _LOGGED_OFFSET_MS
        }

    def mark_unresponsive(self, gateway: int) -> None:
        """Let reports determine the clock of a gateway that has never responded."""
        if gateway not in self._responsive:
            self._unresponsive.add(gateway)

    def is_confirmed(self, gateway: int) -> bool:
        """Return whether the offset was confirmed on the gateway's current or last connection."""
        return gateway in self._confirmed_on and self._connection_of(gateway) == self._confirmed_on[gateway]

    def reset_confirmation(self, gateway: int) -> None:
        """Require a new confirmation: the gateway was disconnected, and its clock may have been set."""
        self._confirmed_on.pop(gateway, None)
        self._checks.pop(gateway, None)

    def check_offset(self, gateway: int, now: int, *, holds: bool | None) -> None:
        """Process whether the fresh reports of a batch agree with an unconfirmed offset.

        `holds` is False if they agree with a correct clock instead, and None if they contradict each other.
        This counts only for gateways that never respond, and when all reports agree for a minute.
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
        """Return whether a report with this time, already corrected, is less than a minute old.

        `source` is the device that sent it, if other devices behind the gateway could confirm it, else 0. A
        report that is not fresh, or is from the future, makes the gateway's clock suspect.
        """
        age = now - time
        is_fresh = -FRESH_MS < age < FRESH_MS
        if is_fresh and (age >= -NEGLIGIBLE_OFFSET_MS or gateway in self._unresponsive):
            self.suspects.pop(gateway, None)
        else:
            # An unconfirmed offset does not correct reports that are not fresh.
            shift = self.shifts.get(gateway, 0)
            if shift and not self.is_confirmed(gateway):
                shift = 0
            self._suspect(gateway, _Suspicion(now, age + shift, source))
        return is_fresh

    def gateways_to_measure(self) -> frozenset[int]:
        """Return gateways whose clocks must be measured: suspect, or with an unconfirmed offset."""
        unconfirmed = (
            each for each in self.shifts if each not in self._unresponsive and not self.is_confirmed(each)
        )
        return frozenset(self.suspects).union(unconfirmed)

    def _suspect(self, gateway: int, new: _Suspicion) -> None:
        suspicion = self.suspects.get(gateway)
        if suspicion is None or abs(new.behind - suspicion.behind) > _TRAVEL_TIME_SPREAD_MS:
            self.suspects[gateway] = new
            return
        source = suspicion.source if suspicion.source == new.source else 0
        self.suspects[gateway] = suspicion._replace(source=source)
        if gateway in self._unresponsive and new.since - suspicion.since >= (
            _SINGLE_DEVICE_AGREEMENT_MS if source else _AGREEMENT_MS
        ):
            self._confirm(gateway)
            self._set_estimate(
                gateway, _Estimate(-min(new.behind, suspicion.behind), _TRAVEL_TIME_SPREAD_MS, new.since)
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
        """Log that a clock is wrong, once until it changes."""
        logged = self._logged_offsets.get(gateway)
        if abs(ahead) > _LOGGED_OFFSET_MS:
            if logged is None or abs(ahead - logged) > _LOGGED_OFFSET_MS:
                self._logged_offsets[gateway] = ahead
                direction = "ahead of" if ahead > 0 else "behind"
                _log.warning(
                    "clock of gateway %s is %d s %s the service's clock, its times are corrected",
                    mac_from_int(gateway),
                    round(abs(ahead) / 1000),
                    direction,
                )
        elif logged is not None:
            del self._logged_offsets[gateway]
            _log.info("clock of gateway %s is correct again", mac_from_int(gateway))
