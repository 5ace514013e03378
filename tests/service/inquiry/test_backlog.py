"""Who waits to be asked, and whose turn it is."""

from __future__ import annotations

from meshfleet.service.inquiry.backlog import Backlog
from meshfleet.service.inquiry.candidates import Candidate


def behind(gateway: int, *devices: int) -> list[Candidate]:
    return [Candidate(device, gateway, (0x8000,)) for device in devices]


def take_all(backlog: Backlog) -> list[Candidate]:
    taken = []
    while (candidate := backlog.take()) is not None:
        taken.append(candidate)
    return taken


def test_one_device_of_each_gateway_is_asked_at_a_time() -> None:
    backlog = Backlog()
    backlog.add([*behind(1, 10, 11), *behind(2, 20), *behind(3, 30)])
    first = take_all(backlog)
    assert [candidate.device for candidate in first] == [10, 20, 30]
    assert (backlog.asked, len(backlog)) == (3, 1)
    backlog.done(first[0])
    assert [candidate.device for candidate in take_all(backlog)] == [11]


def test_gateways_have_their_turns_one_after_the_other() -> None:
    backlog, order = Backlog(), []
    backlog.add([*behind(1, 10, 11, 12), *behind(2, 20, 21, 22)])
    while (candidate := backlog.take()) is not None:
        order.append(candidate.device)
        backlog.done(candidate)
    assert order == [10, 20, 11, 21, 12, 22]


def test_nobody_waits_twice_and_who_was_asked_may_wait_again() -> None:
    backlog = Backlog()
    backlog.add(behind(1, 10, 10))
    backlog.add(behind(1, 10))
    assert len(backlog) == 1
    (candidate,) = take_all(backlog)
    backlog.add(behind(1, 10))
    assert len(backlog) == 0
    backlog.done(candidate)
    backlog.add(behind(1, 10))
    assert len(backlog) == 1


def test_only_so_many_wait_and_no_gateway_takes_all_the_room() -> None:
    backlog = Backlog()
    backlog.add(behind(1, *range(5000)))
    assert len(backlog) == 20
    for gateway in range(2, 2000):
        backlog.add(behind(gateway, *range(gateway * 10_000, gateway * 10_000 + 20)))
    assert len(backlog) == 1000


def test_nobody_waits_for_a_gateway_that_was_dropped() -> None:
    backlog = Backlog()
    backlog.add([*behind(1, 10, 11), *behind(2, 20)])
    backlog.drop(1)
    backlog.drop(3)
    assert [candidate.device for candidate in take_all(backlog)] == [20]
    backlog.add(behind(1, 10))
    assert len(backlog) == 1
