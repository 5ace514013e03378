"""Update slots of gateways: each update that runs through a gateway occupies a slot. Slots are limited."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.updates.model import START_STEPS, DfuModeSeen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.jobs.execution.queries import ExecutionEvent, JobSpecCache
    from meshfleet.service.jobs.execution.transition_writer import ExecutionTransition
    from meshfleet.service.jobs.updates.model import ExecutionRecord

_SELECT_BUSY: Final = (
    "SELECT gateway, method, coalesce(batch, CAST(device AS TEXT)) FROM execution"  # noqa: S608 # constants only
    f" WHERE gateway IN numbers AND {active_condition()}"
    " AND coalesce(step, '') <> 'check'"  # reading a version occupies no slot
    " AND (state IN ('DISPATCHED', 'TRANSFERRING', 'VERIFYING')"
    " OR (method <> 'download' AND state IN ('STAGED', 'APPLYING'))) GROUP BY 1, 2, 3"
)


_TRY_DISPATCH_LOCK: Final = f"SELECT pg_try_advisory_xact_lock({0x6A6F_6273})"


def try_acquire_dispatch_lock(connection: Connection) -> bool:
    """Try to acquire the lock that allows only one process at a time to start executions.

    Return False if another process holds the lock. The lock is released when the transaction ends. The limits
    of jobs and gateways apply to all processes together. SQLite needs no lock: it has only one writer.
    """
    return connection.dialect.name == "sqlite" or bool(
        connection.exec_driver_sql(_TRY_DISPATCH_LOCK).scalar()
    )


class GatewaySlots:
    """Counts the updates of all jobs that run through each gateway. A broadcast counts as one update.

    Use one instance per transaction: it also counts the updates that this transaction has started but not
    written yet.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loaded: set[int] = set()
        self._counts: Counter[int] = Counter()
        self._methods: set[tuple[int, str]] = set()

    def load_counts(self, gateways: Iterable[int | None]) -> None:
        """Load the number of running updates of gateways. Skip gateways that were loaded before."""
        missing = sorted({each for each in gateways if each is not None} - self._loaded)
        if not missing:
            return
        rows = bulk.query_in(self._connection, _SELECT_BUSY, missing)
        self._loaded.update(missing)
        self._counts.update(row[0] for row in rows)
        self._methods.update((row[0], row[1]) for row in rows)

    def has_free_slot(self, gateway: int, method: UpdateMethod, limit: int | None) -> bool:
        """Return whether another update may start through a gateway.

        `limit` is the maximum number of concurrent updates per gateway; None means no limit. At most one
        broadcast and one Nordic DFU run through a gateway at a time (firmware-25).
        """
        self.load_counts([gateway])
        if method is not UpdateMethod.DOWNLOAD and (gateway, str(method)) in self._methods:
            return False
        return limit is None or self._counts[gateway] < limit

    def try_reserve_slot(self, gateway: int, method: UpdateMethod, limit: int | None) -> bool:
        """Reserve a slot of a gateway for an update. Return False if the gateway has no free slot."""
        if not self.has_free_slot(gateway, method, limit):
            return False
        self.reserve_slot(gateway, method)
        return True

    def reserve_slot(self, gateway: int, method: UpdateMethod) -> None:
        """Reserve a slot of a gateway, without checking the limit, for an update that starts now."""
        self.load_counts([gateway])
        self._counts[gateway] += 1
        self._methods.add((gateway, str(method)))


def reserve_dfu_slots(
    connection: Connection,
    spec_cache: JobSpecCache,
    events: Sequence[ExecutionEvent],
    slots: GatewaySlots,
) -> list[ExecutionEvent]:
    """Reserve slots for devices in DFU mode that another gateway receives than before.

    Return all events. In the events of such devices, `has_free_slot` says whether a slot was reserved.
    """
    other_gateways = {
        loaded.execution.device: event.gateway
        for loaded, event in events
        if isinstance(event, DfuModeSeen) and event.gateway not in (None, loaded.execution.gateway)
    }
    if not other_gateways:
        return list(events)
    has_lock = try_acquire_dispatch_lock(connection)
    if has_lock:  # counts read without the lock could be stale when `HostGatewaySelector` gets it later
        slots.load_counts(other_gateways.values())
    completed: list[ExecutionEvent] = []
    for each in events:
        execution, event = each.loaded.execution, each.event
        gateway = other_gateways.get(execution.device)
        if gateway is None or not isinstance(event, DfuModeSeen):
            completed.append(each)
            continue
        limit = spec_cache.load_body(connection, execution.job).concurrency.per_gateway
        has_free_slot = has_lock and slots.try_reserve_slot(gateway, execution.method, limit)
        completed.append(each._replace(event=event._replace(has_free_slot=has_free_slot)))
    return completed


class HostGatewaySelector:
    """Selects the gateway through which an update runs (its host) when its start command is sent again."""

    def __init__(self, connection: Connection, spec_cache: JobSpecCache, slots: GatewaySlots) -> None:
        self._connection = connection
        self._spec_cache = spec_cache
        self._slots = slots

    def assign_host(self, transition: ExecutionTransition) -> ExecutionTransition:
        """Return the transition with the host: the gateway through which the update runs from now on.

        The host changes only if the decision sends the start command again and another gateway was selected
        for that. If this gateway has a free slot, it gets the command and becomes the host. Otherwise the
        previous host gets the command.
        """
        request, execution = transition.decision.request, transition.decision.execution
        is_start = request is not None and request.step in START_STEPS and not request.targets_gateway
        if (
            not is_start
            or transition.request_gateway in (None, execution.gateway)
            or execution.state is not ExecutionState.DISPATCHED
        ):
            return transition
        if not self._reserve_slot(transition.request_gateway, execution):
            return transition._replace(request_gateway=execution.gateway)
        return transition._replace(
            decision=transition.decision._replace(
                execution=replace(execution, gateway=transition.request_gateway)
            )
        )

    def _reserve_slot(self, gateway: int, execution: ExecutionRecord) -> bool:
        """Reserve a slot of a gateway.

        Return False if no slot is free, or if another process holds the dispatch lock.
        """
        if not try_acquire_dispatch_lock(self._connection):
            return False
        limit = self._spec_cache.load_body(self._connection, execution.job).concurrency.per_gateway
        return self._slots.try_reserve_slot(gateway, execution.method, limit)
