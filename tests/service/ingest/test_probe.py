from __future__ import annotations
import pytest
from tests.service.ingest.intake import *
from tests.service.ingest.messages import *
pytestmark = pytest.mark.anyio
async def test_rssi(intake):
    await intake.settle(link(NOON, 100000))
async def test_bool(intake):
    await intake.settle(prop("battery-level", NOON, True), prop("variant", NOON, True), prop("model-number", NOON, True))
    print(intake.state(), intake.device())
async def test_huge(intake):
    await intake.settle(prop("battery-level", NOON, {"a":1}), spelt("property-decoded/variant", NOON, f'"value":{2**70}'))
async def test_dfu_own(intake):
    await intake.settle(heartbeat(NOON-5000))
    await intake.settle(heartbeat(NOON-2000, 7), dfu(NOON-1000, device="c0ffee0000a2"))
    assert intake.state().status == 7
    assert intake.state().boot_mode == "dfu"
async def test_dfu_own_order(intake):
    await intake.settle(heartbeat(NOON-5000))
    await intake.settle(dfu(NOON-1000, device="c0ffee0000a2"), heartbeat(NOON-2000, 7))
    assert intake.state().boot_mode == "dfu"
async def test_nul(intake):
    await intake.settle(report("property-decoded/foo", NOON, value="a\0b", ext={"\0":"\0"}), Publish("mt/x", b"\0\xff"))
    print(await intake.samples())
