"""What samplers are shown of the past is what Optuna itself would make of it, and nothing of it is copied."""

import random
from pathlib import Path

import optuna
import pytest
from fake_rooms import SWEEP, make_sweep
from optuna.trial import TrialState, create_trial

from orchestrator import samplers
from orchestrator.expected import listing_of
from orchestrator.past import Past, answered_before
from search_spaces.idle import Reached
from search_spaces.neighbours import key_of
from search_spaces.screen import Screen, Screened, shortlist

VARIED = """
trials: 60
space: {vary: {policy.block_size: {powers_of_two: [1, 64]}, policy.watermark: {range: [0, 0.2]},
  policy.eviction: {one_of: [lru, fifo]}}}
"""
MIXED = "\n".join(line for line in SWEEP.splitlines() if not line.startswith("space:")) + VARIED


def past_of(space, n: int) -> list[Past]:
    """Of made-up candidates; each third has a second bound, the last two run."""
    r = random.Random(n)
    found = []
    for number in range(n):
        params = {d.field: r.choice(d.values) if d.values else r.uniform(d.low, d.high) for d in space.dimensions}
        bounds = {"ttft": r.random() - 0.5} | ({"itl": r.random() - 0.5} if number % 3 == 0 else {})
        answered = number < n - 2
        found.append(Past(params, (r.random(),) if answered else None, bounds if answered else {}, not answered))
    return found


def by_optuna(search, past):
    """The same trials as Optuna makes and copies them."""
    space = search.space
    names = sorted({name for p in past for name in p.constraints})
    made = []
    for p, before in zip(past, answered_before(past), strict=True):
        params = {
            d.field: p.params[d.field] if d.categorical or not d.values else d.values.index(p.params[d.field])
            for d in space.dimensions
        }
        bounds = {name: max(-1.0, min(p.constraints.get(name, -1.0), samplers.MOST_OVER)) for name in names}
        answered = p.values is not None
        made.append(create_trial(
            state=TrialState.COMPLETE if answered else TrialState.RUNNING, values=p.values, params=params,
            distributions=search.axes, constraints=bounds if answered else None,
            system_attrs=samplers._generation(before),
        ))  # fmt: skip
    return made


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_proposals_are_those_of_trials_that_optuna_made_and_copied(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = samplers.Search(sampler, make_sweep(tmp_path, text=MIXED).space, ("maximize",), 0)
    past = past_of(search.space, 60)
    quick = [samplers._named(search, past, number) for number in range(6)]
    monkeypatch.setattr(samplers, "_trials", by_optuna)
    assert quick == [samplers._named(search, past, number) for number in range(6)]


def test_a_search_that_remembers_what_it_has_shown_proposes_as_one_that_does_not(tmp_path: Path) -> None:
    """Also where a candidate came to something else since, and where a bound is met that nobody had before."""
    space = make_sweep(tmp_path, text=MIXED).space
    lasting, past = samplers.Search("tpe", space, ("maximize",), 0), past_of(space, 60)
    for number in range(60, 90):
        fresh = samplers.Search("tpe", space, ("maximize",), 0)
        found = samplers.propose(lasting, past, number)
        assert found == samplers.propose(fresh, past, number)
        past[number % 50] = Past(past[number % 50].params, (number / 10,), {"ttft": 0.1 - number % 3})
        past.append(Past(found.params, (float(number % 7),), {f"bound{number // 10}": -0.5}))


def test_the_past_is_not_copied_and_not_changed(tmp_path: Path) -> None:
    space = make_sweep(tmp_path, text=MIXED).space
    search = samplers.Search("tpe", space, ("maximize",), 0)
    told = samplers._trials(search, past_of(space, 20))
    before = [dict(trial.__dict__) for trial in told]
    study = optuna.create_study(sampler=samplers.SAMPLERS["tpe"](0))
    study.add_trials(list(told))
    study.ask(search.axes)
    assert all(
        kept.params is given.params for kept, given in zip(study.get_trials(deepcopy=False), told, strict=False)
    )
    assert [trial.__dict__ for trial in told] == before


LISTED = """
trials: 40
sampler: gp
space: {vary: {policy.block_size: {powers_of_two: [1, 64]}, policy.max_num_seqs: {powers_of_two: [2, 64]},
  policy.victim: {one_of: [last_admitted, fewest_outputs, largest]}}}
"""


def listed_space(tmp_path: Path):
    text = "\n".join(line for line in SWEEP.splitlines() if not line.startswith("space:")) + LISTED
    return make_sweep(tmp_path, text=text).space


def worth(params) -> float:
    return 100.0 - abs(params["block_size"] - 8) - (0 if params["max_num_seqs"] >= 16 else 30)


def searched(space, count: int, seen: Reached | None) -> list[Past]:
    search, past = samplers.Search("gp", space, ("maximize",), 3), []
    for number in range(count):
        params = samplers.propose(search, past, number).params
        past.append(Past(params, (worth(params),), reached=seen))
    return past


def test_a_process_over_the_list_proposes_nobody_twice_and_is_a_function_of_the_past(tmp_path: Path) -> None:
    space = listed_space(tmp_path)
    past = searched(space, 25, None)
    assert len({key_of(p.params) for p in past}) == 25
    assert max(p.values[0] for p in past) == 100.0
    for number in (7, 15, 24):  # asked anew, as a resumed search asks
        again = samplers.Search("gp", space, ("maximize",), 3)
        assert samplers.propose(again, past[:number], number).params == past[number].params


def test_twins_of_what_is_known_are_proposed_when_nothing_else_is_left(tmp_path: Path) -> None:
    """Nobody was preempted and 3 ran: of 7 x 6 x 3 candidates 7 x 2 differ (limits of 2, and those above 3)."""
    space = listed_space(tmp_path)
    past = searched(space, 30, Reached(3, 0, 0))
    first = samplers._STARTUP["gp"] + 1
    wide = [(p.params["block_size"], p.params["max_num_seqs"] > 3) for p in past[first:]]
    known = {(p.params["block_size"], p.params["max_num_seqs"] > 3) for p in past[:first]}
    new = [w for n, w in enumerate(wide) if w not in known and w not in wide[:n]]
    assert wide[: len(new)] == new, "a twin came before something new"


def screen_of(space) -> Screen:
    """A simulator that sees the truth but for a constant; a fifth is listed, with two checks."""
    said = [Screened(params, 3 * worth(params)) for params in space.candidates()]
    return Screen(tuple(shortlist(space, said, 0.2, 2, 1)), {key_of(s.params): s for s in said})


def test_a_screen_is_followed_by_expectation_and_its_checks_keep_their_places(tmp_path: Path) -> None:
    space = listed_space(tmp_path)
    screen = screen_of(space)
    roles = {key_of(one.params): one.role for one in screen.listed}
    search, past, asked = samplers.Search("gp", space, ("maximize",), 3, screen=screen), [], []
    while (params := samplers.listed_next(search, past, asked, len(past))) is not None:
        asked.append(key_of(params))
        past.append(Past(params, (worth(params),)))
    assert sorted(asked) == sorted(roles), "each that is listed, once"
    for place, one in enumerate(screen.listed):
        assert (roles[asked[place]] == "check") == (one.role == "check")


def test_other_samplers_follow_a_screen_in_its_order(tmp_path: Path) -> None:
    space = listed_space(tmp_path)
    screen = screen_of(space)
    search, asked = samplers.Search("tpe", space, ("maximize",), 3, screen=screen), []
    while (params := samplers.listed_next(search, [], asked, 0)) is not None:
        asked.append(key_of(params))
    assert asked == [key_of(one.params) for one in screen.listed]


def test_what_a_simulator_said_is_an_axis_and_of_whom_it_said_nothing_stands_last(tmp_path: Path) -> None:
    space = listed_space(tmp_path)
    some = {key: one for n, (key, one) in enumerate(screen_of(space).said.items()) if n % 2}
    listing = listing_of(space, some)
    column = listing.axes.points[:, -1]
    assert (column.min(), column.max()) == (0, 1)
    assert (column[[n for n, c in enumerate(listing.candidates) if key_of(c) not in some]] == 0).all()


def test_a_space_without_a_list_is_searched_by_optuna_s_own_process(tmp_path: Path) -> None:
    space = make_sweep(tmp_path, text=MIXED).space
    search = samplers.Search("gp", space, ("maximize",), 3)
    assert search.listing is None
    assert space.contains(space.policy_of(space.suggest(samplers.propose(search, past_of(space, 12), 12).params)))


@pytest.mark.parametrize(
    ("change", "who"),
    [
        ("trials: 21", "gp"),
        ("trials: 601", "tpe"),
        ("trials: 21\nobjective: pareto", "nsga2"),
        ("trials: 21\nsampler: random", "random"),
        ("sampler: auto\ntrials: 2100", "exhaustive"),
    ],
)
def test_who_proposes_where_nobody_is_named(change: str, who: str, tmp_path: Path) -> None:
    """Repeats are 3: of 7 x 10 x 10 = 700 candidates 7, 201, or all are asked."""
    space = (
        "space: {vary: {policy.block_size: {powers_of_two: [1, 64]},\n"
        "  policy.max_num_seqs: {powers_of_two: [2, 1024]},\n"
        "  policy.max_num_batched_tokens: {powers_of_two: [64, 32768]}}}\nrepeats: 3\n"
    )
    kept = [
        line for line in SWEEP.splitlines() if not line.startswith(("space:", "repeats:", "trials:", "sampler:"))
    ]
    assert make_sweep(tmp_path, text="\n".join(kept) + f"\n{space}{change}\n").config.sampler == who
