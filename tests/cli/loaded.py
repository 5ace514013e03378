"""Loaded by the program that others are forked from: all commands, and what a service starts with."""

from __future__ import annotations

import gc

import click

from meshfleet.cli import demo_life, main
from meshfleet.service import api, app

__all__ = ["app", "demo_life"]

_context = click.Context(main)
for _name in main.list_commands(_context):
    main.get_command(_context, _name)
api.routes()
gc.freeze()  # what a forked program does not touch stays shared
