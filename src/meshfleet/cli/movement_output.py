"""Output of what moving devices of an emulated gateway really do: survey points and true positions."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import click
from msgspec import json

from meshfleet.cli.shutdown import OutputClosed
from meshfleet.emulator.device_movement import SurveyPoint

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.emulator.device_movement import MovementRecord, TruePosition

_log = logging.getLogger(__name__)

_WRITE_SECONDS: Final = 0.2
"""Seconds between two writes; the simulation itself must not wait for a terminal or a disk."""


class MovementOutput:
    """Prints survey points, and appends true positions to the file of `--truth`.

    A file that cannot be written is an error at the start; later it is logged, and the gateway goes on.
    """

    def __init__(self, truth: Path | None, *, as_json: bool) -> None:
        self._truth = truth
        self._as_json = as_json
        self._points: list[SurveyPoint] = []
        self._positions: list[TruePosition] = []
        self._is_failing = False
        try:
            self._write_positions()
        except OSError as exc:
            raise click.ClickException(f"{truth} cannot be used: {exc.strerror}") from exc

    def add(self, record: MovementRecord) -> None:
        """Keep a record until the next write, if it will be written."""
        if isinstance(record, SurveyPoint):
            self._points.append(record)
        elif self._truth is not None:
            self._positions.append(record)

    async def run(self) -> None:
        """Write new records regularly, and a last time when canceled."""
        try:
            while True:
                await asyncio.sleep(_WRITE_SECONDS)
                self._write()
        finally:
            self._write()

    def _write(self) -> None:
        points, self._points = self._points, []
        try:
            for point in points:
                click.echo(json.encode(point) if self._as_json else _format_survey_point(point))
        except BrokenPipeError as exc:
            raise OutputClosed(*exc.args) from exc
        try:
            self._write_positions()
        except OSError as exc:
            if not self._is_failing:
                _log.warning("%s cannot be written: %s", self._truth, exc.strerror)
            self._is_failing = True

    def _write_positions(self) -> None:
        """Append new positions to the file. Raise `OSError` if it cannot be written."""
        positions, self._positions = self._positions, []
        if self._truth is not None:
            with self._truth.open("ab") as file:
                file.writelines(json.encode(position) + b"\n" for position in positions)


def _format_survey_point(point: SurveyPoint) -> str:
    return (
        f"Survey point of {point.device}: floor {point.floor}, x {point.x:g}, y {point.y:g}, "
        f"from {point.begin} to {point.end}"
    )
