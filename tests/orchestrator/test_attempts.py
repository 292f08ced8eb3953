"""Laws of measuring again: only off-speed, at most twice, and the most usual machine counts."""

from pathlib import Path

from made_results import make_result

from orchestrator.attempts import deciding, measure_again, off_by
from orchestrator.folder import AttemptRecord


def attempt(number, probe_s=None, result=True, lost=None):
    info = {} if probe_s is None else {"probe_s": probe_s}
    loss = {"reason": lost} if lost else {}
    return AttemptRecord(number, Path("x"), make_result() if result else None, info, loss)


def test_with_fewer_than_two_other_probes_nothing_is_off():
    assert off_by(9.0, [1.0]) == 0.0
    assert not measure_again(9.0, [1.0], 0)


def test_more_than_15_percent_to_either_side_is_measured_again():
    others = [1.0, 1.0, 1.1]
    assert [measure_again(p, others, 0) for p in (0.84, 0.86, 1.14, 1.16)] == [True, False, False, True]


def test_two_repeats_are_the_most():
    assert [measure_again(2.0, [1.0, 1.0], n) for n in (0, 1, 2)] == [True, True, False]


def test_without_a_probe_nothing_is_measured_again():
    assert not measure_again(None, [1.0, 1.0], 0)


def test_the_attempt_on_the_most_usual_machine_decides():
    assert deciding([attempt(1, 1.4), attempt(2, 1.05), attempt(3, 1.2)], [1.0, 1.0]).number == 2


def test_without_probes_the_last_answer_decides_and_what_was_lost_never_does():
    tried = [attempt(1), attempt(2), attempt(3, result=False), attempt(4, lost="the answer was of another spec")]
    assert deciding(tried, []).number == 2
    assert deciding([attempt(1, result=False)], []) is None
