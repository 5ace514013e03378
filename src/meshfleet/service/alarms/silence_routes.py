"""REST routes of silences: `/api/v1/silences`."""

import re
from typing import Final

from litestar import Router, delete, get, post, put
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, JSONBody

from meshfleet.db import Database
from meshfleet.errors import NotFound, quote_name
from meshfleet.rest.silences import SILENCES_PATH, NewSilence, Silence, SilenceList
from meshfleet.service.actor import Actor
from meshfleet.service.alarms import silence_commands
from meshfleet.service.clock import Now
from meshfleet.service.http.request import decode_segment

_SILENCE_ID: Final = re.compile(r"silence-([1-9][0-9]{0,17})")


def parse_path_silence(text: str) -> int:
    """Return the number of a silence in a path. Raise `NotFound` if there cannot be one."""
    found = _SILENCE_ID.fullmatch(decode_segment(text))
    if found is None:
        raise NotFound(f"{quote_name(text)} is not the id of a silence")
    return int(found[1])


@get()
async def list_silences(database: Given[Database], now: Given[Now]) -> SilenceList:
    """List all silences by their beginning, also those that ended in the last 30 days."""
    return await database.read(silence_commands.list_silences, now=now())


@post(problems=(409,))
async def create_silence(
    data: JSONBody[NewSilence], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> Silence:
    """Create a silence: a maintenance window in which alarms are not told."""
    return await database.write(silence_commands.create_silence, data, by=actor, now=now())


@get("/{silence_id:str}")
async def show_silence(silence_id: FromPath[str], database: Given[Database], now: Given[Now]) -> Silence:
    """Show a silence, and how many alarms it silences now."""
    return await database.read(silence_commands.load_silence, parse_path_silence(silence_id), now=now())


@put("/{silence_id:str}")
async def change_silence(
    silence_id: FromPath[str],
    data: JSONBody[NewSilence],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> Silence:
    """Replace a silence. Alarms that it does not silence any more are told."""
    number = parse_path_silence(silence_id)
    return await database.write(silence_commands.replace_silence, number, data, by=actor, now=now())


@delete("/{silence_id:str}")
async def delete_silence(
    silence_id: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> None:
    """Delete a silence. Alarms that it silences are told that they are still open."""
    await database.write(silence_commands.delete_silence, parse_path_silence(silence_id), by=actor, now=now())


router = Router(
    SILENCES_PATH,
    route_handlers=[list_silences, create_silence, show_silence, change_silence, delete_silence],
    tags=["Alarms"],
)
