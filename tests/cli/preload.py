"""Imports for the process that programs are forked from: all commands, and what a service needs to start."""

from __future__ import annotations

import encodings.idna
import gc
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio._backends._asyncio
import click
import httpcore
import uvicorn.lifespan.off
import uvloop

from meshfleet.cli import demo_service, main
from meshfleet.db import open_database
from meshfleet.service import api, app
from meshfleet.service.console.static_files import load_static_files

__all__ = ["anyio", "app", "demo_service", "encodings", "httpcore", "uvicorn", "uvloop"]

_context = click.Context(main)
for _name in main.list_commands(_context):
    main.get_command(_context, _name)
api.build_litestar_app()
load_static_files()
with TemporaryDirectory() as _folder:
    open_database("sqlite", Path(_folder)).close()  # imports what creates the tables
gc.collect()
gc.freeze()  # memory that a forked program does not touch stays shared
