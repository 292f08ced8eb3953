"""What a sweep says of itself while it runs."""

from orchestrator.live import Lines, best_line, block, eta_line, states_line
from orchestrator.progress import Picture, Tally


def test_states_are_counted_and_what_waits_or_runs_is_not_done():
    picture = Picture(9, {"waiting": 3, "running": 2, "complete": 3, "reused": 1})
    assert states_line(picture) == "4/9 done: 2 running, 3 complete, 1 reused, 3 waiting"


def test_the_best_is_only_what_may_win():
    tally = Tally()
    assert best_line(tally.picture(3, {}, 1)) == "no result yet"
    tally.count("complete", "block_size=8", None)
    assert best_line(tally.picture(3, {}, 1)) == "nothing feasible yet"
    tally.count("complete", "block_size=16", 50.0)
    tally.count("complete", "block_size=32", 40.0)
    assert best_line(tally.picture(3, {}, 1)) == "best so far block_size=16 at 50, feasible"
    tally.unit = "qualified tok/s"
    assert best_line(tally.picture(3, {}, 1)) == "best so far block_size=16 at 50 qualified tok/s, feasible"


def test_the_eta_shares_what_is_left_among_those_that_run():
    tally = Tally([10.0, 20.0])
    tally.count("complete", "x", None)
    tally.count("complete", "x", None)
    assert tally.picture(10, {}, 2).eta_s == 60.0
    assert eta_line(tally.picture(10, {}, 2)) == "ETA 1 min 00 s"
    assert eta_line(Tally().picture(10, {}, 2)) == "ETA unknown yet"


def test_lines_speak_only_when_a_trial_ended(capsys):
    lines = Lines()
    lines.show(Picture(2, {"waiting": 1, "running": 1}))
    lines.show(Picture(2, {"waiting": 0, "running": 2}))
    lines.show(Picture(2, {"waiting": 0, "running": 1, "complete": 1}))
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_terminal_shows_slots_what_runs_where_and_the_last_fault():
    tally = Tally(fault="trial 3: attempt lost (killed); trying again")
    says = {4: "node-2/0: steady rate_scale=2: 812 of 2,400 requests, 31.4 of 95.0 s of simulated time", 5: ""}
    assert block(tally.picture(9, says, 4)) == [
        "0/9 done: 2 running, 7 waiting",
        "no result yet; ETA unknown yet",
        "2 of 4 slots busy",
        f"  trial 4 on {says[4]}",
        "  trial 5 on its way",
        "last fault: trial 3: attempt lost (killed); trying again",
    ]
