"""Estimates how far the clocks of gateways are ahead of or behind the local clock (report-48).

A report is called fresh if its time is less than a minute before or after the local time.

The offset of a clock is measured with responses to requests. A response contains the gateway's time, which
was read between the local times at which the request was sent and the response was received. The offset from
the midpoint of these is the estimate, and half of the round trip its uncertainty. A new response replaces the
estimate if it is at least as exact, or contradicts the estimate.

Reports never set the offset of a gateway that responds, because reports may be old. A report that is not
fresh only triggers another measurement. Gateways that never respond are the exception: if all reports of such
a gateway are off by the same amount for a minute, its clock is wrong, because the delay of replayed reports
would change. Some devices have clocks of their own, so this takes longer if only one of several devices
reports.

A clock may be set while its gateway is disconnected. So after a gateway has connected, or the service has
started, a known offset is unconfirmed until the gateway responds. An unconfirmed offset corrects only reports
that are fresh after the correction; other reports keep their time. If a gateway never responds, its fresh
reports decide whether the offset is right, when they agree for a minute. One report is not enough: an old
report that is replayed may look fresh with a wrong offset.

With an external broker, connections are unknown. There an offset stays confirmed until the gateway's reports
stop. If the gateway reconnects before that with another time, its first report makes its clock suspect, and
the clock is measured as if it had been set during a connection.
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
"""Largest offset of a gateway's clock in milliseconds, ahead or behind, that is not corrected."""

_LOGGED_OFFSET_MS: Final = 60_000
"""A clock offset, or a change of one, is logged if it is larger than this many milliseconds."""

_DRIFT_RATIO: Final = 1_000
"""The uncertainty of a clock estimate grows by one millisecond in this many milliseconds."""

_TRAVEL_TIME_SPREAD_MS: Final = 20_000
"""Maximum milliseconds by which the delays of reports from device to service differ."""

_AGREEMENT_MS: Final = 60_000
"""Milliseconds for which all reports of a gateway that never responds must have the same clock offset.

A device counts as silent after three minutes at the earliest, so a wrong clock is corrected before.
"""

_SINGLE_DEVICE_AGREEMENT_MS: Final = 30 * 60_000
"""Milliseconds for which reports must have the same clock offset if only one of several devices reports.

Most of the other devices report at least once in half an hour.
"""


class _OffsetEstimate(NamedTuple):
    """Offset of a gateway's clock: `ahead` of the local clock ± `error` milliseconds, measured at `at`.

    `ahead` is negative if the clock is behind. `at` is a local Unix time in milliseconds.
    """

    ahead: int
    error: int
    at: int

    def is_better_than(self, new: _OffsetEstimate) -> bool:
        """Return whether `new` agrees with this older estimate but is less exact."""
        error = self.error + abs(new.at - self.at) // _DRIFT_RATIO
        return abs(new.ahead - self.ahead) <= error + new.error and error < new.error


class _ClockSuspicion(NamedTuple):
    """Suspicion that a gateway's clock is wrong, because the times of its reports are not fresh."""

    since: int
    """Local time in milliseconds since when no report of the gateway has been fresh."""
    behind: int
    """Milliseconds by which the reported times are behind the local clock."""
    source: int
    """Device that sent all these reports; 0 if several devices did, or the gateway has only one device."""


class _OffsetAgreement(NamedTuple):
    """Result so far of comparing fresh reports of a gateway with its unconfirmed clock offset."""

    agrees: bool
    """True: all fresh reports agree with the offset. False: all of them agree with a correct clock."""
    since: int
    """Local time in milliseconds of the first of these reports."""
    connection: int | None
    """Number of the MQTT connection over which the reports came; None if unknown."""


class GatewayClocks:
    """Estimates how far the clocks of gateways are ahead of or behind the local clock."""

    def __init__(self, connection_of: Callable[[int], int | None] = lambda _gateway: None) -> None:
        """Create without estimates.

        `connection_of` returns the number of a gateway's current or last connection, or None if unknown. The
        number differs for every connection.
        """
        self._connection_of = connection_of
        self.shifts: dict[int, int] = {}
        """Milliseconds to add to reported times, by gateway; only gateways with wrong clocks.

        Ingest uses this dictionary too, so the dictionary is modified but never replaced.
        """
        self.suspects: dict[int, _ClockSuspicion] = {}
        """Gateways whose last reports were not fresh, so that their clocks may be wrong."""
        self._estimates: dict[int, _OffsetEstimate] = {}
        self._confirmed_on: dict[int, int | None] = {}
        """Number of the connection on which the clock offset was last confirmed, by gateway."""
        self._checks: dict[int, _OffsetAgreement] = {}
        """Results so far for unconfirmed clock offsets, by gateway; only for gateways that never respond."""
        self._responsive: set[int] = set()
        """Gateways that have responded to a request since the service started."""
        self._unresponsive: set[int] = set()
        """Gateways that were sent requests and have never responded."""
        self._logged_offsets: dict[int, int] = {}
        """Clock offset in milliseconds that was last logged, by gateway, until the clock is right again."""

    @property
    def offsets(self) -> Mapping[int, int]:
        """Milliseconds by which measured clocks are ahead of the local clock, by gateway."""
        return {gateway: estimate.ahead for gateway, estimate in self._estimates.items()}

    def restore(self, offsets: Mapping[int, int]) -> None:
        """Load stored clock offsets at the start. An offset is unconfirmed until it is measured again."""
        for gateway, ahead in offsets.items():
            # With an error so large that the next response replaces it.
            self._estimates[gateway] = _OffsetEstimate(ahead, FRESH_MS, 0)
            self._set_shift(gateway, ahead)

    def remove_gateways(self, gateways: Collection[int]) -> None:
        """Discard the clock data of gateways that are no longer claimed."""
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

    def measure_offset(self, gateway: int, sent: int, received: int, time: int) -> None:
        """Update the estimated clock offset of a gateway from a response with the gateway's `time`.

        `sent` and `received` are the local times of request and response. All times are in milliseconds.
        """
        self._responsive.add(gateway)
        self._unresponsive.discard(gateway)
        self._confirm_offset(gateway)
        new = _OffsetEstimate(time - (sent + received) // 2, (received - sent) // 2 + 1, received)
        current = self._estimates.get(gateway)
        if current is not None and current.is_better_than(new):
            self.suspects.pop(gateway, None)
        else:
            self._set_estimate(gateway, new)

    def handle_local_clock_change(self, ahead: int) -> None:
        """Correct all estimated offsets after the local clock was set.

        `ahead` is the number of milliseconds by which the local clock was set ahead, negative if set back.
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
        """Record that a gateway did not respond. If it never has, its reports determine its clock offset."""
        if gateway not in self._responsive:
            self._unresponsive.add(gateway)

    def is_confirmed(self, gateway: int) -> bool:
        """Return whether a gateway's clock offset was confirmed on its current or last MQTT connection."""
        return gateway in self._confirmed_on and self._connection_of(gateway) == self._confirmed_on[gateway]

    def reset_confirmation(self, gateway: int) -> None:
        """Mark a gateway's clock offset as unconfirmed after a disconnection: the clock may have been set."""
        self._confirmed_on.pop(gateway, None)
        self._checks.pop(gateway, None)

    def check_offset(self, gateway: int, now: int, *, agrees: bool | None) -> None:
        """Compare the fresh reports of a batch with the unconfirmed clock offset of their gateway.

        `agrees` is True if all these reports agree with the offset, False if they agree with a correct clock
        instead, and None if they contradict each other. If the reports agree for a minute, the offset is
        confirmed or, if `agrees` is False, set to 0.

        Do nothing if the offset is confirmed, or if the gateway responds to requests.
        """
        if gateway not in self._unresponsive or self.is_confirmed(gateway):
            return
        if agrees is None:
            self._checks.pop(gateway, None)
            return
        new = _OffsetAgreement(agrees, now, self._connection_of(gateway))
        check = self._checks.setdefault(gateway, new)
        if check._replace(since=now) != new:
            self._checks[gateway] = new
        elif now - check.since >= _AGREEMENT_MS:
            self._confirm_offset(gateway)
            if not agrees:
                self._set_estimate(gateway, _OffsetEstimate(0, _TRAVEL_TIME_SPREAD_MS, now))

    def is_fresh(self, gateway: int, time: int, now: int, source: int = 0) -> bool:
        """Return whether a report is less than a minute old or ahead. `time` is the corrected report time.

        `source` is the device that sent the report if the gateway has other devices, else 0. A report that is
        not fresh, or is ahead of the local clock, makes the clock of the gateway suspect.
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
            self._record_suspicion(gateway, _ClockSuspicion(now, age + shift, source))
        return is_fresh

    def gateways_to_measure(self) -> frozenset[int]:
        """Return the gateways whose clocks must be measured, because they may be wrong.

        The clock of such a gateway is suspect, or is corrected by an unconfirmed offset.
        """
        unconfirmed = (
            each for each in self.shifts if each not in self._unresponsive and not self.is_confirmed(each)
        )
        return frozenset(self.suspects).union(unconfirmed)

    def _record_suspicion(self, gateway: int, observed: _ClockSuspicion) -> None:
        """Record a report that was not fresh: the gateway's clock may be wrong.

        If the gateway never responds, estimate its clock offset from such reports when they agree.
        """
        suspicion = self.suspects.get(gateway)
        if suspicion is None or abs(observed.behind - suspicion.behind) > _TRAVEL_TIME_SPREAD_MS:
            self.suspects[gateway] = observed
            return
        source = suspicion.source if suspicion.source == observed.source else 0
        self.suspects[gateway] = suspicion._replace(source=source)
        if gateway in self._unresponsive and observed.since - suspicion.since >= (
            _SINGLE_DEVICE_AGREEMENT_MS if source else _AGREEMENT_MS
        ):
            self._confirm_offset(gateway)
            self._set_estimate(
                gateway,
                _OffsetEstimate(
                    -min(observed.behind, suspicion.behind), _TRAVEL_TIME_SPREAD_MS, observed.since
                ),
            )

    def _confirm_offset(self, gateway: int) -> None:
        """Mark a gateway's clock offset as confirmed on its current or last MQTT connection."""
        self._checks.pop(gateway, None)
        self._confirmed_on[gateway] = self._connection_of(gateway)

    def _set_estimate(self, gateway: int, estimate: _OffsetEstimate) -> None:
        """Set the estimated clock offset of a gateway, and correct the times of its future reports."""
        self.suspects.pop(gateway, None)
        self._estimates[gateway] = estimate
        self._set_shift(gateway, estimate.ahead)
        self._log_offset(gateway, estimate.ahead)

    def _set_shift(self, gateway: int, ahead: int) -> None:
        """Correct the times of future reports by a clock offset, unless the offset is negligible."""
        if abs(ahead) <= NEGLIGIBLE_OFFSET_MS:
            self.shifts.pop(gateway, None)
        else:
            self.shifts[gateway] = -ahead

    def _log_offset(self, gateway: int, ahead: int) -> None:
        """Log that a gateway's clock is wrong, or correct again.

        A wrong clock is logged again only if its offset has changed by more than a minute.
        """
        logged = self._logged_offsets.get(gateway)
        if abs(ahead) > _LOGGED_OFFSET_MS:
            if logged is None or abs(ahead - logged) > _LOGGED_OFFSET_MS:
                self._logged_offsets[gateway] = ahead
                direction = "ahead of" if ahead > 0 else "behind"
                _log.warning(
                    "clock of gateway %s is %d s %s the service's clock; its times are corrected",
                    mac_from_int(gateway),
                    round(abs(ahead) / 1000),
                    direction,
                )
        elif logged is not None:
            del self._logged_offsets[gateway]
            _log.info("clock of gateway %s is correct again", mac_from_int(gateway))
