"""Shell completion of arguments. Values from the service are offered only if the service responds in time."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from meshfleet.cli.output import limit_items
from meshfleet.cli.service_access import open_fleet
from meshfleet.cli.terminal import to_printable
from meshfleet.errors import FleetError
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.rest.inputs import MAX_RESULTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from meshfleet.client import Fleet

Completions = list[CompletionItem[str]]

_DEFAULT_TIMEOUT_SECONDS: Final = 1.5
"""Seconds to wait for completions from the service, unless MESHFLEET_TAB_SECONDS is set."""


def complete_identifiers(_ctx: click.Context, _param: click.Parameter, typed: str) -> Completions:
    """Return completions for an identifier: names from the catalogue, and hex ids if `typed` is not empty."""
    return [
        CompletionItem(value, help=" ".join(sorted(entry.kinds)))
        for entry in BUILTIN_CATALOGUE
        for value in ((entry.name, entry.id) if typed else (entry.name,))
        if value.startswith(typed)
    ]


def _complete_from_service(
    list_items: Callable[[Fleet], AsyncIterator[Any]],
    value: Callable[[Any], str],
    describe: Callable[[Any], str],
    *,
    is_lower_case: bool = True,
) -> Callable[[click.Context, click.Parameter, str], Completions]:
    """Return a completer that offers values from the service that begin with the typed text.

    Only the first page of the service's list is searched. Nothing is offered if the service fails or does
    not respond in time. If all values are in lower case, typed capital letters match too.
    """

    def complete(_ctx: click.Context, _param: click.Parameter, typed: str) -> Completions:
        prefix = typed.lower() if is_lower_case else typed

        async def collect_items(fleet: Fleet) -> Completions:
            return [
                CompletionItem(to_printable(value(each)), help=to_printable(describe(each)))
                async for each in limit_items(list_items(fleet), MAX_RESULTS)
                if value(each).startswith(prefix)
            ]

        with suppress(FleetError, click.ClickException, TimeoutError, OSError):
            return asyncio.run(_run_with_timeout(collect_items))
        return []

    return complete


complete_labels = _complete_from_service(
    lambda fleet: fleet.labels.list(), lambda each: each.label, lambda _: "", is_lower_case=False
)
complete_devices = _complete_from_service(
    lambda fleet: fleet.devices.list(), lambda each: str(each.id), lambda each: each.friendly_name
)
complete_gateways = _complete_from_service(
    lambda fleet: fleet.gateways.list(), lambda each: each.mac, lambda each: each.friendly_name
)
complete_firmware = _complete_from_service(
    lambda fleet: fleet.firmware.list(),
    lambda each: each.id,
    lambda each: f"{each.model_number} {each.version} {each.state}",
)
complete_sites = _complete_from_service(
    lambda fleet: fleet.sites.list(), lambda each: each.id, lambda each: each.name
)
complete_jobs = _complete_from_service(
    lambda fleet: fleet.jobs.list(), lambda each: each.id, lambda each: f"{each.name} {each.state}"
)


async def _run_with_timeout(work: Callable[[Fleet], Coroutine[Any, Any, Completions]]) -> Completions:
    """Call `work` with a client of the service. Raise `TimeoutError` if that takes too long."""
    asyncio.get_running_loop().set_default_executor(_DaemonThreadExecutor())
    async with asyncio.timeout(_read_timeout()), open_fleet() as fleet:
        return await work(fleet)


def _read_timeout() -> float:
    """Return the seconds to wait for completions: MESHFLEET_TAB_SECONDS, or the default."""
    with suppress(KeyError, ValueError):
        return float(os.environ["MESHFLEET_TAB_SECONDS"])
    return _DEFAULT_TIMEOUT_SECONDS


class _DaemonThreadExecutor(ThreadPoolExecutor):
    """Runs functions in daemon threads, so that the process can exit during a long DNS query."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a new daemon thread."""
        future: Future[Any] = Future()
        Thread(target=_run_into_future, args=(future, partial(work, *args, **kwargs)), daemon=True).start()
        return future


def _run_into_future(future: Future[Any], work: Callable[[], Any]) -> None:
    """Call `work`, and set its result or exception in `future`."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except Exception as exc:  # noqa: BLE001 # passed on to the caller
            future.set_exception(exc)
