"""What a shell offers when somebody presses the tab key: at once, or nothing at all."""

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
from meshfleet.rest import MAX_RESULTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from meshfleet.client import Fleet

Completions = list[CompletionItem[str]]

_DEFAULT_TIMEOUT_SECONDS: Final = 1.5
"""Seconds that somebody waits for what a tab key brings, unless MESHFLEET_TAB_SECONDS says otherwise."""


def complete_identifiers(_ctx: click.Context, _param: click.Parameter, begun: str) -> Completions:
    """Names of the catalogue; in hex only what begins so."""
    return [
        CompletionItem(word, help=" ".join(sorted(entry.kinds)))
        for entry in BUILTIN_CATALOGUE
        for word in ((entry.name, entry.id) if begun else (entry.name,))
        if word.startswith(begun)
    ]


def complete_labels(_ctx: click.Context, _param: click.Parameter, begun: str) -> Completions:
    """Labels of the service where somebody is logged in."""
    return _complete_from_service(
        lambda fleet: fleet.labels.list(), lambda each: each.label, lambda _: "", begun
    )


def complete_devices(_ctx: click.Context, _param: click.Parameter, begun: str) -> Completions:
    """Ids of devices there, with their names where a shell shows them."""
    return _complete_from_service(
        lambda fleet: fleet.devices.list(),
        lambda each: str(each.id),
        lambda each: each.friendly_name,
        begun.lower(),
    )


def complete_gateways(_ctx: click.Context, _param: click.Parameter, begun: str) -> Completions:
    """MACs of gateways there, with their names where a shell shows them."""
    return _complete_from_service(
        lambda fleet: fleet.gateways.list(), lambda each: each.mac, lambda each: each.friendly_name, begun
    )


def complete_firmware(_ctx: click.Context, _param: click.Parameter, begun: str) -> Completions:
    """Ids of firmware there, with what it is where a shell shows that."""
    return _complete_from_service(
        lambda fleet: fleet.firmware.list(),
        lambda each: each.id,
        lambda each: f"{each.model_number} {each.version} {each.state}",
        begun.lower(),
    )


def complete_jobs(_ctx: click.Context, _param: click.Parameter, begun: str) -> Completions:
    """Ids of jobs there, with their names where a shell shows them."""
    return _complete_from_service(
        lambda fleet: fleet.jobs.list(),
        lambda each: each.id,
        lambda each: f"{each.name} {each.state}",
        begun.lower(),
    )


def _complete_from_service(
    list_items: Callable[[Fleet], AsyncIterator[Any]],
    word: Callable[[Any], str],
    describe: Callable[[Any], str],
    begun: str,
) -> Completions:
    """One page of what the service has; nothing where it does not answer, or not at once."""

    async def found(fleet: Fleet) -> Completions:
        return [
            CompletionItem(to_printable(word(each)), help=to_printable(describe(each)))
            async for each in limit_items(list_items(fleet), MAX_RESULTS)
            if word(each).startswith(begun)
        ]

    with suppress(FleetError, click.ClickException, TimeoutError, OSError):
        return asyncio.run(_run_with_timeout(found))
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
    """Threads for which nobody waits at the end. A nameserver may take minutes to say nothing."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """Run it in a thread of its own."""
        future: Future[Any] = Future()
        Thread(target=_run_into_future, args=(future, partial(work, *given, **named)), daemon=True).start()
        return future


def _run_into_future(future: Future[Any], work: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except Exception as exc:  # noqa: BLE001 # it is for who asked
            future.set_exception(exc)
