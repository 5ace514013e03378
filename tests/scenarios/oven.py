"""Loaded by the program that others are forked from: what a service spends most of its start on."""

from __future__ import annotations

from meshfleet.cli import demo_life, serve
from meshfleet.service import api, app

__all__ = ["api", "app", "demo_life", "serve"]

api.routes()
