"""`meshfleet asyncapi` as a user types it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from meshfleet.cli import main
from meshfleet.service.asyncapi import build_asyncapi_document


@pytest.mark.rule("rest-162")
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_messaging_interface_is_described_without_a_service(flags: list[str]) -> None:
    result = CliRunner().invoke(main, ["asyncapi", *flags])
    assert result.exit_code == 0
    document = json.loads(result.output)
    assert document == build_asyncapi_document()
    assert document["servers"]["mqtt"]["host"] == "localhost:1883"
    assert document["channels"]["report-heartbeat"]["address"].startswith("mt/gateway/")


def test_the_help_names_the_document() -> None:
    assert "AsyncAPI document" in CliRunner().invoke(main, ["asyncapi", "--help"]).output


def test_wrong_usage_is_exit_code_2() -> None:
    assert CliRunner().invoke(main, ["asyncapi", "--no-such-flag"]).exit_code == 2
