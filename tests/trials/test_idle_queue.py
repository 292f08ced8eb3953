"""Which cached block goes next: each order against a list that is searched anew, and by example."""

import random
from dataclasses import dataclass, field

import pytest

from trials.idle_queue import EVICTION, IdleQueue, LeastRecentlyUsed


@dataclass
class Listed:
    """The same rules, looked up each time."""

    order: str
    idle: list[int] = field(default_factory=list)  # in the order in which they became idle
    born: dict[int, int] = field(default_factory=dict)
    uses: dict[int, int] = field(default_factory=dict)
    depth: dict[int, int] = field(default_factory=dict)
    births: int = 0

    def rank(self, block: int) -> int:
        return {"lru": 0, "fifo": self.born[block], "lfu": self.uses[block], "length_aware": -self.depth[block]}[
            self.order
        ]

    def ordered(self) -> list[int]:
        return sorted(self.idle, key=self.rank)


def rank_less(queue: IdleQueue) -> bool:
    return isinstance(queue, LeastRecentlyUsed)


@pytest.mark.parametrize("name", [*EVICTION])
@pytest.mark.parametrize("seed", range(12))
def test_order_is_that_of_a_list_searched_anew(name: str, seed: int) -> None:
    """Blocks are handed out, released in bulk from any depth, hit while idle or held, and taken again."""
    rng = random.Random(seed)
    queue, listed = EVICTION[name](), Listed(name)
    held, blank = list[int](), list(range(40))
    for _ in range(1200):
        move = rng.choice(
            ["hand out", "release", "release", "hit", "use", "pop", "clear" if rng.random() < 0.02 else "hit"]
        )
        if move == "hand out" and blank:
            new = [blank.pop() for _ in range(rng.randint(1, min(4, len(blank))))]
            if not rank_less(queue):
                queue.handed_out(new)
            _born(listed, new)
            held += new
        elif move == "release" and held:
            rng.shuffle(held)
            gone = [held.pop() for _ in range(rng.randint(1, min(5, len(held))))]
            depth, step = rng.choice([(rng.randint(5, 9), -1), (rng.randint(0, 9), 1)])
            queue.put(gone, depth, step)
            for number, block in enumerate(gone):
                listed.idle.append(block)
                listed.depth[block] = depth + step * number
        elif move == "hit" and listed.idle:
            block = rng.choice(listed.idle)
            queue.hit(block)
            queue.used(block)
            listed.idle.remove(block)
            listed.uses[block] += 1
            held.append(block)
        elif move == "use" and held:
            block = rng.choice(held)
            queue.used(block)
            listed.uses[block] += 1
        elif move == "pop" and listed.idle:
            count = rng.randint(1, len(listed.idle))
            expected = listed.ordered()[:count]
            assert queue.pop(count) == expected
            listed.idle = [block for block in listed.idle if block not in expected]
            if not rank_less(queue):
                queue.handed_out(expected)
            _born(listed, expected)
            held += expected
        elif move == "clear":
            queue.clear()
            blank += listed.idle + held
            listed.idle, held = [], []
        assert list(queue) == listed.ordered()


def _born(listed: Listed, blocks: list[int]) -> None:
    for block in blocks:
        listed.births += 1
        listed.born[block], listed.uses[block] = listed.births, 0


def filled(name: str, blocks: list[int]) -> IdleQueue:
    """Blocks handed out in this order and all held."""
    queue = EVICTION[name]()
    queue.handed_out(blocks)
    return queue


def test_least_recently_used_goes_by_release_alone() -> None:
    queue = filled("lru", [1, 2, 3])
    queue.put([3, 1, 2], 2, -1)
    queue.hit(3)
    queue.put([3], 0, 0)
    assert queue.pop(9) == [1, 2, 3]


def test_fifo_goes_by_who_was_handed_out_first_however_often_it_was_used() -> None:
    queue = filled("fifo", [1, 2, 3])
    queue.put([3, 2, 1], 2, -1)
    queue.hit(1)
    queue.used(1)
    queue.put([1], 0, 0)
    assert queue.pop(2) == [1, 2]
    queue.handed_out([1])  # a new life
    queue.put([1], 0, 0)
    assert queue.pop(2) == [3, 1]


def test_least_frequently_used_counts_finds_in_this_life_and_breaks_ties_by_time_idle() -> None:
    queue = filled("lfu", [1, 2, 3])
    queue.used(1)
    queue.put([1, 2, 3], 0, 1)
    assert list(queue) == [2, 3, 1]
    assert queue.pop(3) == [2, 3, 1]
    queue.handed_out([1, 2])
    queue.put([1, 2], 0, 1)
    assert queue.pop(1) == [1]  # its earlier find is forgotten


def test_length_aware_gives_up_the_deepest_first_and_keeps_openings() -> None:
    queue = filled("length_aware", [1, 2, 3, 4, 5])
    queue.put([3, 2, 1], 2, -1)  # a sequence of three blocks, tail first
    queue.put([4, 5], 0, 1)  # one of two, head first
    assert queue.pop(5) == [3, 2, 5, 1, 4]


def test_pop_gives_what_there_is() -> None:
    for name in EVICTION:
        queue = filled(name, [1, 2])
        queue.put([1, 2], 0, 1)
        queue.hit(1)
        assert queue.pop(5) == [2]
        assert queue.pop(5) == []


def test_used_up_front_of_the_list_is_dropped_and_nothing_else() -> None:
    """Past 4,096 taken entries the list is cut; order and stale entries stay."""
    queue = LeastRecentlyUsed()
    queue.put(list(range(10_000)), 0, 0)
    queue.hit(7000)
    assert queue.pop(6000) == list(range(6000))
    queue.put([7000], 0, 0)
    assert queue.pop(4001) == [*range(6000, 7000), *range(7001, 10_000), 7000]
