"""Loaded by the program that others are forked from: what a service spends most of its start on."""

from __future__ import annotations

from meshfleet.service import api, app

__all__ = ["app"]

api.routes()
