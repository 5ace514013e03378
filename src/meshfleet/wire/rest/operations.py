"""Bodies for operators."""

from __future__ import annotations

from typing import Literal

from meshfleet.wire.rest.bodies import Body


class Health(Body, frozen=True, kw_only=True):
    """All is well (rest-159, rest-160); what is not well is a problem."""

    status: Literal["ok"]
