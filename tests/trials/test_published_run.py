"""A published run is read as it was served: arrivals on the engine's clock, settings from what was resolved."""

import pytest

from tests.trials.made_run import write_run
from trials.published_run import read_run
from trials.units import SpecError


def test_requests_come_in_arrival_order_with_latencies_from_their_arrival(tmp_path) -> None:
    """The second found the engine idlest: the clocks lie 950 s apart, so the first was queued after 0.25 s."""
    write_run(tmp_path)
    run = read_run(tmp_path)
    assert run.trace.arrival_ns.tolist() == [0, 10**9]
    assert run.trace.num_prompt_tokens.tolist() == [40, 8]
    assert run.real.ttft == pytest.approx([0.5, 0.5])
    assert run.real.e2e == pytest.approx([2.5, 0.5])
    assert run.real.tpot[0] == pytest.approx(0.5)
    assert run.real.tpot[1] != run.real.tpot[1]  # one token has no gap
    assert run.real.makespan == pytest.approx(2.5)


def test_settings_become_the_trial_and_the_model_is_found_by_its_name(tmp_path) -> None:
    write_run(tmp_path, async_scheduling=True, scheduler_reserve_full_isl=True)
    run = read_run(tmp_path)
    spec = run.spec()
    assert (spec.pool.blocks, spec.pool.reserve_blocks, spec.policy.block_size) == (40, 1, 16)
    assert (spec.policy.max_num_seqs, spec.policy.max_num_batched_tokens, spec.policy.reserve_prompt) == (
        4,
        64,
        True,
    )
    assert run.model.name == "llama-3.1-8b"
    assert run.captured == (1, 4, 8)
    assert run.ahead


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [('"world_size": 1', '"world_size": 2', "2 GPUs"), ("Llama-3.1-8B", "Nobody-3B", "--model"),
     ("cache_config", "cash_config", "resolved_config")],
)  # fmt: skip
def test_a_run_that_the_tables_cannot_tell_is_refused_with_the_reason(tmp_path, old, new, said) -> None:
    write_run(tmp_path)
    meta = tmp_path / "meta.json"
    meta.write_text(meta.read_text().replace(old, new))
    with pytest.raises(SpecError, match=said):
        read_run(tmp_path)


def test_a_folder_that_is_not_a_run_says_what_lacks(tmp_path) -> None:
    with pytest.raises(SpecError, match=r"meta\.json"):
        read_run(tmp_path)
    write_run(tmp_path)
    (tmp_path / "requests.jsonl").write_text('{"arrival_time": 1}\n')
    with pytest.raises(SpecError, match=r"requests\.jsonl"):
        read_run(tmp_path)
