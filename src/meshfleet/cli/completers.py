"""Shell completion of arguments. Values from the service are offered only if it responds in time."""

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
"""Maximum seconds to wait for the service, unless MESHFLEET_TAB_SECONDS is set."""


def complete_identifiers(_ctx: click.Context, _param: click.Parameter, typed: str) -> Completions:
    """Offer the identifier names in the catalogue; after the first typed character, also hex ids."""
    return [
        CompletionItem(value, help=" ".join(sorted(entry.kinds)))
        for entry in BUILTIN_CATALOGUE
        for value in ((entry.name, entry.id) if typed else (entry.name,))
        if value.startswith(typed)
    ]


def complete_labels(_ctx: click.Context, _param: click.Parameter, typed: str) -> Completions:
    """Offer the labels at the service to which the user is logged in."""
    return _complete_from_service(
        lambda fleet: fleet.labels.list(), lambda each: each.label, lambda _: "", typed
    )


def complete_devices(_ctx: click.Context, _param: click.Parameter, typed: str) -> Completions:
    """Offer device ids, each with the name of the device as its description."""
    return _complete_from_service(
        lambda fleet: fleet.devices.list(),
        lambda each: str(each.id),
        lambda each: each.friendly_name,
        typed.lower(),
    )


def complete_gateways(_ctx: click.Context, _param: click.Parameter, typed: str) -> Completions:
    """Offer the MACs of gateways, each with the name of the gateway as its description."""
    return _complete_from_service(
        lambda fleet: fleet.gateways.list(), lambda each: each.mac, lambda each: each.friendly_name, typed
    )


def complete_firmware(_ctx: click.Context, _param: click.Parameter, typed: str) -> Completions:
    """Offer firmware ids, each with model, version and state as its description."""
    return _complete_from_service(
        lambda fleet: fleet.firmware.list(),
        lambda each: each.id,
        lambda each: f"{each.model_number} {each.version} {each.state}",
        typed.lower(),
    )


def complete_jobs(_ctx: click.Context, _param: click.Parameter, typed: str) -> Completions:
    """Offer job ids, each with name and state of the job as its description."""
    return _complete_from_service(
        lambda fleet: fleet.jobs.list(),
        lambda each: each.id,
        lambda each: f"{each.name} {each.state}",
        typed.lower(),
    )


def _complete_from_service(
    list_items: Callable[[Fleet], AsyncIterator[Any]],
    value: Callable[[Any], str],
    describe: Callable[[Any], str],
    typed: str,
) -> Completions:
    """Offer matching items of a list, up to one page of it.

    Return an empty list if the service fails or does not respond in time.
    """

    async def collect_items(fleet: Fleet) -> Completions:
        return [
            CompletionItem(to_printable(value(each)), help=to_printable(describe(each)))
            async for each in limit_items(list_items(fleet), MAX_RESULTS)
            if value(each).startswith(typed)
        ]

    with suppress(FleetError, click.ClickException, TimeoutError, OSError):
        return asyncio.run(_run_with_timeout(collect_items))
    return []


async def _run_with_timeout(work: Callable[[Fleet], Coroutine[Any, Any, Completions]]) -> Completions:
    asyncio.get_running_loop().set_default_executor(_DaemonThreadExecutor())
    async with asyncio.timeout(_timeout_seconds()), open_fleet() as fleet:
        return await work(fleet)


def _timeout_seconds() -> float:
    with suppress(KeyError, ValueError):
        return float(os.environ["MESHFLEET_TAB_SECONDS"])
    return _DEFAULT_TIMEOUT_SECONDS


class _DaemonThreadExecutor(ThreadPoolExecutor):
    """Runs work in daemon threads, so that the exit does not wait for a DNS query, which may take minutes."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a new thread."""
        future: Future[Any] = Future()
        Thread(target=_run_into_future, args=(future, partial(work, *args, **kwargs)), daemon=True).start()
        return future


def _run_into_future(future: Future[Any], work: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except Exception as exc:  # noqa: BLE001 # passed on to the caller
            future.set_exception(exc)
