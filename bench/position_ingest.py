"""Cost of positions at ingest: readings of anchors, committed and flushed with positions on and off.

Each pair of runs ingests the same 20 batches into two databases of its own, in alternating order, and the
row is the median of the ratios of their CPU time. "On" keeps every reading, because all parents are anchors.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.service.ingest.ingest_harness import build_batch

from meshfleet.db import open_database
from meshfleet.db.samples import open_sample_store
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol.times import format_millis
from meshfleet.service.ingest.pipeline import IngestPipeline
from meshfleet.service.positions.reading_log import ReadingLog
from meshfleet.service.positions.reading_store import ReadingStore

_PAIRS: Final = 40
_BATCHES: Final = 20
_READINGS: Final = 1_000
_ANCHORS: Final = 12
_BATCHES_PER_FLUSH: Final = 5
_BATCH_MS: Final = 1_000
_START: Final = 1_763_500_000_000


def run(*, quick: bool) -> dict[str, Any]:
    """Measure the CPU time per reading with positions on and off."""
    pairs = 10 if quick else _PAIRS
    messages = [_build_messages(number) for number in range(_BATCHES)]
    ratios, on, off = [], [], []
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        seconds = {is_on: asyncio.run(_ingest(messages, is_on=is_on)) for is_on in order}
        ratios.append(seconds[True] / seconds[False])
        on.append(seconds[True])
        off.append(seconds[False])
    micros = 1e6 / (_BATCHES * _READINGS)
    return {
        "readings of anchors": {
            "positions off (anchor)": {"cpu_us": round(median(off) * micros, 2)},
            "positions on": {
                "cpu_us": round(median(on) * micros, 2),
                "pairs": pairs,
                "cost_percent": round((median(ratios) - 1) * 100, 2),
                "least_percent": round((min(ratios) - 1) * 100, 2),
                "most_percent": round((max(ratios) - 1) * 100, 2),
            },
        }
    }


def _build_messages(batch: int) -> list[Publish]:
    """Build one batch: each of some devices is received by all anchors."""
    return [
        Publish(
            f"mt/gateway/02005e000001/device/c0ffee01{number // _ANCHORS:04x}/rssi",
            f'{{"time":"{format_millis(_START + batch * _BATCH_MS + number)}",'
            f'"parent":"c0ffee00{number % _ANCHORS:04x}","rssi":{-50 - number % 40}}}'.encode(),
            1,
            packet_id=1,
        )
        for number in range(_READINGS)
    ]


async def _ingest(messages: list[list[Publish]], *, is_on: bool) -> float:
    """Ingest all batches. Return the CPU time of commits and flushes in seconds."""
    now = _START
    with TemporaryDirectory() as directory, closing(open_database("sqlite", Path(directory))) as database:
        samples = open_sample_store(database, Path(directory), {}, now=now)
        with closing(samples):
            pipeline = IngestPipeline(database, samples, prefix="", admission=None, now=lambda: now)
            readings = ReadingStore(retention_ms=3_600_000)
            if is_on:
                readings.set_anchors({0xC0FFEE000000 + number: 1 for number in range(_ANCHORS)})
            pipeline.subscribe(ReadingLog(readings))
            seconds = 0.0
            for number, batch in enumerate(messages):
                now = _START + number * _BATCH_MS + _READINGS
                built = build_batch(batch)
                started = time.process_time()
                await pipeline.commit(built)
                if number % _BATCHES_PER_FLUSH == _BATCHES_PER_FLUSH - 1:
                    await pipeline.flush()
                seconds += time.process_time() - started
            if len(readings) != (_BATCHES * _READINGS if is_on else 0):
                raise RuntimeError("readings are missing, or were kept without anchors")
            return seconds
