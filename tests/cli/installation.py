"""Healthy installation of a service, of which tests break parts."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import trustme

from meshfleet.db.samples.segments import write_segment
from meshfleet.service.locks import lock_data_folder
from tests.cli.programs import run_command
from tests.servers import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

DAY_MS = 86_400_000
NOW = int(time.time() * 1000)
IMAGE_NAME = "6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d"
"""SHA-256 of the only firmware image."""

PLAN_HASH = "d4dc56669143034f31aa309635d4113d9ad76a02b1739da22c965ed2049be9e6"
"""SHA-256 of the only plan of a floor."""

_CONTENTS = """
    INSERT INTO backup VALUES ({backup_time}, {backup_time}, 2000000, 1);
    INSERT INTO device VALUES (5, 'Attic', 'attic', 1, 1, 0, '', 0, '', NULL, NULL, 1, 2, 1);
    INSERT INTO gateway (device, claimed_at) VALUES (5, 1);
    INSERT INTO sample_segment VALUES (7, 20000, 0, 0, 1, 0, 7);
    INSERT INTO firmware
        (id, model, version, type, file_name, size, sha256, hardware, notes, state, created_by, created_at)
        VALUES ('fw-1', 24, '1.0.0', 0, 'a', 5, x'{image}', '[]', '', 'draft', 'anna', 0);
    INSERT INTO site VALUES (11, 'Depot', 1, 1);
    INSERT INTO floor VALUES (11, -1, NULL, 0, 0, 9, 9, NULL);
    INSERT INTO plan VALUES (3, 11, -1, 'image/svg+xml', 9, 9, 6, x'{plan}', '[]', 1);
    INSERT INTO plan_chunk VALUES (3, 0, x'{plan_start}'), (3, 1, x'{plan_end}');
"""


class Installation:
    """Healthy settings and data of a service that does not run. Rows of a table break a part of it."""

    def __init__(self, folder: Path, template: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir(mode=0o700)
        shutil.copy(template, self.data)
        self.settings = {"data": str(self.data), "http": self.new_address(), "mqtt": self.new_address()}
        self.limits = {"connections": 100}
        self.cleanup = ExitStack()
        self.cert = folder / "chain.pem"
        self.config = folder / "meshfleet.toml"
        self.execute(
            _CONTENTS,
            backup_time=NOW - DAY_MS,
            image=IMAGE_NAME,
            plan=PLAN_HASH,
            plan_start=b"<svg".hex(),
            plan_end=b"/>".hex(),
        )
        for name in ("images", "samples"):
            (self.data / name).mkdir()
        (self.data / "images" / IMAGE_NAME).write_bytes(b"image")
        write_segment(self.data / "samples" / "00000007.samples", [])

    @staticmethod
    def new_address() -> str:
        return f"127.0.0.1:{free_port()}"

    def execute(self, script: str, **values: object) -> None:
        """Execute SQL statements, with values in place of their names in braces."""
        with closing(sqlite3.connect(self.data / "meshfleet.sqlite")) as database:
            database.executescript(script.format(**values))

    def set_mode(self, mode: int) -> None:
        self.data.chmod(mode)

    def lock(self) -> None:
        self.cleanup.enter_context(lock_data_folder(self.data))

    def issue_certificate(self, *names: str, days: float) -> None:
        now = datetime.now(UTC)
        begin, end = now - timedelta(days=100), now + timedelta(days=days, minutes=5)
        issued = trustme.CA().issue_cert(*names, not_before=begin, not_after=end)
        self.cert.write_bytes(issued.cert_chain_pems[0].bytes())
        issued.private_key_pem.write_to_path(self.cert.with_name("key.pem"))
        self.settings |= {"tls-cert": str(self.cert), "tls-key": str(self.cert.with_name("key.pem"))}

    def examine(self, *options: str) -> Result:
        lines = [f"{name} = {json.dumps(value)}" for name, value in self.settings.items()]
        lines += ["[limits]", *(f"{name} = {value}" for name, value in self.limits.items())]
        self.config.write_text("\n".join(lines))
        with self.cleanup:
            return run_command("doctor", "--config", str(self.config), *options)
