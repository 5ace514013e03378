"""Who waits to be asked, and whose turn it is."""

from __future__ import annotations

from meshfleet.service.metadata.candidates import CandidateQueue, MetadataCandidate


def behind(gateway: int, *devices: int) -> list[MetadataCandidate]:
    return [MetadataCandidate(device, gateway, (0x8000,)) for device in devices]


def pop_all(backlog: CandidateQueue) -> list[MetadataCandidate]:
    taken = []
    while (candidate := backlog.pop()) is not None:
        taken.append(candidate)
    return taken


def test_one_device_of_each_gateway_is_asked_at_a_time() -> None:
    backlog = CandidateQueue()
    backlog.add([*behind(1, 10, 11), *behind(2, 20), *behind(3, 30)])
    first = pop_all(backlog)
    assert [candidate.device for candidate in first] == [10, 20, 30]
    assert (backlog.active, len(backlog)) == (3, 1)
    backlog.finish(first[0])
    assert [candidate.device for candidate in pop_all(backlog)] == [11]


def test_gateways_have_their_turns_one_after_the_other() -> None:
    backlog, order = CandidateQueue(), []
    backlog.add([*behind(1, 10, 11, 12), *behind(2, 20, 21, 22)])
    while (candidate := backlog.pop()) is not None:
        order.append(candidate.device)
        backlog.finish(candidate)
    assert order == [10, 20, 11, 21, 12, 22]


def test_nobody_waits_twice_and_who_was_asked_may_wait_again() -> None:
    backlog = CandidateQueue()
    backlog.add(behind(1, 10, 10))
    backlog.add(behind(1, 10))
    assert len(backlog) == 1
    (candidate,) = pop_all(backlog)
    backlog.add(behind(1, 10))
    assert len(backlog) == 0
    backlog.finish(candidate)
    backlog.add(behind(1, 10))
    assert len(backlog) == 1


def test_only_so_many_wait_and_no_gateway_takes_all_the_room() -> None:
    backlog = CandidateQueue()
    backlog.add(behind(1, *range(5000)))
    assert len(backlog) == 20
    for gateway in range(2, 2000):
        backlog.add(behind(gateway, *range(gateway * 10_000, gateway * 10_000 + 20)))
    assert len(backlog) == 1000


def test_nobody_waits_for_a_gateway_that_was_dropped() -> None:
    backlog = CandidateQueue()
    backlog.add([*behind(1, 10, 11), *behind(2, 20)])
    backlog.drop_gateway(1)
    backlog.drop_gateway(3)
    assert [candidate.device for candidate in pop_all(backlog)] == [20]
    backlog.add(behind(1, 10))
    assert len(backlog) == 1
