"""Two programs run the jobs of one database at the same moment: the laws hold as for one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.service.jobs.engine import advancing, outbox, stepping, uptime
from meshfleet.service.jobs.engine.loading import Orders
from tests.service.jobs.engine.chaos import an_order, run_out
from tests.service.jobs.engine.laws import Laws
from tests.service.jobs.engine.radio import Fate
from tests.service.jobs.engine.world import LEASE, Weather, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database
    from meshfleet.service.jobs.engine.advancing import Reply
    from meshfleet.service.jobs.engine.outbox import Letter

HANDS = 2


class Crowd(World):
    """A world in which all that a runner does is done by two of them, side by side."""

    def __init__(self, database: Database, seed: int, **size: int) -> None:
        self._said = [Orders() for _ in range(HANDS)]
        self._threads = ThreadPoolExecutor(HANDS)
        super().__init__(database, seed, **size)

    def close(self) -> None:
        self._threads.shutdown()

    def round(self) -> None:
        """As one runner does, but twice at the same time."""
        self._report()
        self._take_answers()
        self._both(self._work)
        letters = [letter for some in self._both(self._take) for letter in some]
        assert len({each.id for each in letters}) == len(letters), "two have taken the same letter"
        self._send(sorted(letters, key=lambda each: (each.job, each.device, each.step)))
        self.after_round()

    def _both(self, work: Callable[[int], Any]) -> list[Any]:
        return list(self._threads.map(work, range(HANDS)))

    def _work(self, hand: int) -> None:
        write, orders = self.database.write_now, self._said[hand]
        write(uptime.resume, self.now)
        left = self.database.read_now(outbox.left_behind, self.now, 0)
        if left:
            write(advancing.reply, orders, left, self.moment)
        write(advancing.look, orders, self.moment)
        write(advancing.hear, orders, self.database.read_now(advancing.devices_with_news), self.moment)
        for job in self.database.read_now(stepping.open_jobs, 0):
            for _ in range(100):
                if not write(stepping.step, orders, job, self.moment).is_full:
                    break

    def _take(self, _hand: int) -> list[Letter]:
        return self.database.write_now(outbox.take, 3, {}, until=self.now + LEASE).letters

    def _take_over(self, replies: list[Reply]) -> None:
        """Each takes over some, and some of them both."""
        self.told += [(self.now, each) for each in replies]
        shares = [replies[: len(replies) // 2 + 1], replies[len(replies) // 2 :]]
        self._both(
            lambda hand: self.database.write_now(advancing.reply, self._said[hand], shares[hand], self.moment)
        )


@pytest.mark.parametrize("seed", [3])
def test_two_runners_do_what_one_would(postgresql_database: Database, seed: int) -> None:
    chance = Random(seed)  # noqa: S311 # no secret
    world = Crowd(postgresql_database, seed, devices=4)
    laws = Laws(world)
    world.weather = Weather(lost=0.1, unanswered=0.1)
    for each in world.devices.values():
        each.fate = chance.choice([Fate.FINE, Fate.FINE, Fate.FINE, *Fate])
    try:
        for _ in range(2):
            world.create(an_order(chance))
            world.run(60)
            laws.check()
        world.kill(frees=False)
        world.run(300)
        laws.check()
        run_out(world)
        laws.check_end()
    finally:
        world.close()
        postgresql_database.close()
