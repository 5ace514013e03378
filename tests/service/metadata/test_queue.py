"""The queue of candidates."""

from __future__ import annotations

from meshfleet.service.metadata.candidates import CandidateQueue, MetadataCandidate


def candidates_of(gateway: int, *devices: int) -> list[MetadataCandidate]:
    return [MetadataCandidate(device, gateway, (0x8000,)) for device in devices]


def pop_all(queue: CandidateQueue) -> list[MetadataCandidate]:
    candidates = []
    while (candidate := queue.pop_candidate()) is not None:
        candidates.append(candidate)
    return candidates


def test_one_device_of_each_gateway_is_active_at_a_time() -> None:
    queue = CandidateQueue()
    queue.add_candidates([*candidates_of(1, 10, 11), *candidates_of(2, 20), *candidates_of(3, 30)])
    active = pop_all(queue)
    assert [candidate.device for candidate in active] == [10, 20, 30]
    assert (queue.active_count, len(queue)) == (3, 1)
    queue.finish_candidate(active[0])
    assert [candidate.device for candidate in pop_all(queue)] == [11]


def test_gateways_take_turns() -> None:
    queue, order = CandidateQueue(), []
    queue.add_candidates([*candidates_of(1, 10, 11, 12), *candidates_of(2, 20, 21, 22)])
    while (candidate := queue.pop_candidate()) is not None:
        order.append(candidate.device)
        queue.finish_candidate(candidate)
    assert order == [10, 20, 11, 21, 12, 22]


def test_a_device_is_queued_once_and_can_be_queued_again_when_finished() -> None:
    queue = CandidateQueue()
    queue.add_candidates(candidates_of(1, 10, 10))
    queue.add_candidates(candidates_of(1, 10))
    assert len(queue) == 1
    (candidate,) = pop_all(queue)
    queue.add_candidates(candidates_of(1, 10))
    assert len(queue) == 0
    queue.finish_candidate(candidate)
    queue.add_candidates(candidates_of(1, 10))
    assert len(queue) == 1


def test_the_queue_is_limited_in_total_and_per_gateway() -> None:
    queue = CandidateQueue()
    queue.add_candidates(candidates_of(1, *range(5000)))
    assert len(queue) == 20
    for gateway in range(2, 2000):
        queue.add_candidates(candidates_of(gateway, *range(gateway * 10_000, gateway * 10_000 + 20)))
    assert len(queue) == 1000


def test_the_queue_of_a_dropped_gateway_is_empty() -> None:
    queue = CandidateQueue()
    queue.add_candidates([*candidates_of(1, 10, 11), *candidates_of(2, 20)])
    queue.drop_gateway(1)
    queue.drop_gateway(3)
    assert [candidate.device for candidate in pop_all(queue)] == [20]
    queue.add_candidates(candidates_of(1, 10))
    assert len(queue) == 1
