"""The receiver in docs/guides/notifications.md, and its routes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import httpx
from msgspec.structs import fields

from meshfleet.rest.bodies import decode_body
from meshfleet.rest.channels import AlarmRoute, NewAlarmRoutes
from meshfleet.service.notifications.signature import build_headers, create_secret
from tests.documentation import ROOT
from tests.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs" / "guides" / "notifications.md").read_text()


def find_block(language: str) -> str:
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(block)


def test_the_receiver_accepts_what_is_signed_and_nothing_else(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    (tmp_path / "receiver.py").write_text(find_block("python").replace("9000", str(port)))
    secret, body = create_secret(), b'{"type":"alarm.opened","data":{"sentence":"It burns."}}'
    signed = build_headers("msg_1", body, [secret], timestamp=int(time.time()))
    with subprocess.Popen(
        [sys.executable, "-u", "receiver.py"],
        cwd=tmp_path,
        env={**os.environ, "SECRET": secret},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        try:
            url = f"http://127.0.0.1:{port}/"
            eventually(lambda: is_listening(port), "that the receiver listens")
            assert httpx.post(url, content=body, headers=signed).status_code == 204
            assert httpx.post(url, content=body + b" ", headers=signed).status_code == 401
            assert program.stdout is not None
            assert program.stdout.readline() == "msg_1 alarm.opened It burns.\n"
            assert program.stdout.readline().startswith("refused: ")
        finally:
            program.kill()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_routes_of_the_page_can_be_used() -> None:
    routes = decode_body(NewAlarmRoutes, find_block("json").encode()).items
    assert [each.name for each in routes] == ["Duty", "Freezers", "Rest"]
    documented = re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Routes")[2], re.MULTILINE)
    assert ["name", *documented] == [each.encode_name for each in fields(AlarmRoute)]
