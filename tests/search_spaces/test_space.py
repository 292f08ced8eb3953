"""Laws of spaces: what is allowed, in which order, and what is held fixed."""

import pytest
from made_specs import make_spec

from search_spaces.controls import CONTROLS, control_spec
from search_spaces.ready import READY
from search_spaces.space import build_space, load_space_spec, space_spec, with_policy
from trials.units import SpecError


def block_size(**spec):
    return build_space(load_space_spec("block_size"), make_spec(**spec))


def test_the_ready_space_is_the_powers_of_two_from_1_to_256_in_order():
    sizes = [c["block_size"] for c in block_size().candidates()]
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128, 256]


def test_isolation_fixes_pool_bytes_with_the_tables_inside_and_moves_nothing_else():
    space = block_size()
    specs = [space.suggest(c) for c in space.candidates()]
    assert all(s.pool.tables_inside for s in specs)
    assert len({s.pool for s in specs}) == 1
    assert len({s.model_copy(update={"policy": specs[0].policy}).model_dump_json() for s in specs}) == 1
    assert {s.policy.model_copy(update={"block_size": 1}) for s in specs} == {specs[0].policy}


def test_isolation_refuses_a_pool_given_in_blocks():
    with pytest.raises(SpecError, match=r"pool\.bytes"):
        block_size(pool={"blocks": 100})


def test_block_sizes_beyond_max_model_len_are_left_out_and_said_so():
    space = block_size(policy={"max_model_len": 100})
    assert [c["block_size"] for c in space.candidates()][-1] == 64
    assert "128, 256" in space.notes[0]


def test_exponents_keep_the_order_of_powers_of_two():
    (distribution,) = block_size().distributions().values()
    assert (distribution.low, distribution.high, distribution.step) == (0, 8, 1)


def test_encoding_and_decoding_are_inverse():
    space = block_size()
    for params in space.candidates():
        assert space.decode(space.encode(params)) == params


def test_a_candidate_knows_its_place_and_a_control_outside_has_none():
    space = block_size()
    assert [space.position(space.suggest(c).policy) for c in space.candidates()] == [(i,) for i in range(9)]
    assert space.position(control_spec(space, "contiguous").policy) is None
    assert not space.contains(control_spec(space, "one_block").policy)
    assert space.position(control_spec(space, "vendor_default").policy) == (4,)


def test_contiguous_reserves_the_whole_context_and_shares_nothing():
    policy = control_spec(block_size(), "contiguous").policy
    assert (policy.layout, policy.block_size, policy.prefix_caching) == ("contiguous", 1024, False)


def test_one_block_is_paged_with_a_block_of_the_whole_context():
    policy = control_spec(block_size(), "one_block").policy
    assert (policy.layout, policy.block_size) == ("paged", 1024)


def test_smallest_and_largest_are_the_ends_of_the_space():
    space = block_size()
    assert [control_spec(space, n).policy.block_size for n in ("smallest", "largest")] == [1, 256]


def test_a_space_that_does_not_move_block_size_has_no_smallest():
    space = build_space(space_spec({"vary": {"policy.watermark": {"range": [0, 0.2]}}}), make_spec())
    assert control_spec(space, "smallest") is None


def test_controls_share_the_pool_of_the_candidates():
    space = block_size()
    assert {control_spec(space, n).pool for n in CONTROLS} == {space.base.pool}


def test_several_dimensions_are_enumerated_with_the_last_one_fastest():
    vary = {
        "policy.prefix_caching": {"one_of": [True, False]},
        "policy.max_num_seqs": {"range": [8, 12], "step": 2},
    }
    space = build_space(space_spec({"vary": vary}), make_spec())
    assert [tuple(c.values()) for c in space.candidates()] == [
        (True, 8), (True, 10), (True, 12), (False, 8), (False, 10), (False, 12),
    ]  # fmt: skip
    assert [len(d.values) for d in space.dimensions] == [2, 3]


def test_a_float_range_without_a_step_is_continuous():
    space = build_space(space_spec({"vary": {"policy.watermark": {"range": [0, 0.2]}}}), make_spec())
    assert not space.enumerable
    assert space.contains(with_policy(space.base, watermark=0.1).policy)
    assert not space.contains(with_policy(space.base, watermark=0.3).policy)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"vary": {"policy.blocksize": {"one_of": [1]}}}, "did you mean 'policy.block_size'"),
        ({"vary": {"policy.block_size": {"powers_of_two": [3, 8]}}}, "3 is not a power of two"),
        ({"vary": {"policy.block_size": {"powers_of_two": [8, 4]}}}, "lies above"),
        ({"vary": {"policy.block_size": {}}}, "exactly one of"),
        ({"vary": {"policy.block_size": {"one_of": []}}}, "at least one value"),
        ({"vary": {}}, "vary"),
        ({"vary": {"policy.watermark": {"one_of": [0.1]}}, "isolates": "block_size"}, "only field"),
        ({"vary": {"policy.block_size": {"one_of": [4]}}, "colour": 1}, "colour"),
    ],
)
def test_a_space_that_cannot_be_is_refused_with_its_reason(data, words):
    with pytest.raises(SpecError, match=words.replace("(", r"\(")):
        space_spec(data)


def test_an_invalid_candidate_is_refused_before_anything_runs():
    spec = space_spec({"vary": {"policy.block_size": {"one_of": [16, 0]}}})
    with pytest.raises(SpecError, match="block_size=0"):
        build_space(spec, make_spec())


def test_an_unknown_ready_space_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(SpecError, match="did you mean 'block_size'"):
        load_space_spec("block_sise", tmp_path)


def test_a_space_of_ones_own_is_read_beside_the_sweep(tmp_path):
    (tmp_path / "mine.yaml").write_text("name: mine\nvary: {policy.block_size: {one_of: [8, 16]}}\n")
    assert load_space_spec("mine.yaml", tmp_path).name == "mine"


CONDITIONED = {
    "policy.reserve_output": {"one_of": ["none", "full"]},
    "policy.victim": {"one_of": ["last_admitted", "largest"], "when": {"policy.reserve_output": "none"}},
    "policy.max_num_seqs": {"powers_of_two": [8, 16]},
}


def conditioned(**spec):
    return build_space(space_spec({"vary": CONDITIONED}), make_spec(**spec))


def test_a_dimension_that_does_not_matter_multiplies_no_trials():
    space = conditioned()
    assert space.num_candidates == len(list(space.candidates())) == 2 * 2 + 2
    assert [tuple(c) for c in space.candidates() if c["reserve_output"] == "full"] == [
        ("reserve_output", "max_num_seqs")
    ] * 2


def test_where_it_does_not_matter_it_keeps_the_base_s_value():
    space = conditioned(policy={"victim": "largest"})
    (full,) = {space.suggest(c).policy.victim for c in space.candidates() if c["reserve_output"] == "full"}
    assert full == "largest"
    moved = with_policy(space.base, reserve_output="full", victim="last_admitted").policy
    assert not space.contains(moved)


def test_one_candidate_has_one_name_whatever_a_sampler_says_of_what_does_not_matter():
    space = conditioned()
    told = [{"reserve_output": "full", "victim": v, "max_num_seqs": 8} for v in ("last_admitted", "largest")]
    assert space.canonical(told[0]) == space.canonical(told[1]) == {"reserve_output": "full", "max_num_seqs": 8}


def test_every_candidate_is_found_again_by_place_by_policy_and_by_parameters():
    space = conditioned()
    for params in space.candidates():
        policy = space.policy_of(space.suggest(params))
        assert space.params_of(policy) == params
        assert space.candidate_at(space.position(policy)) == params
        assert space.decode(space.encode(params)) == params
        assert space.encode(params).keys() == space.distributions().keys()


def test_neighbours_along_a_line_are_candidates_also_where_a_condition_comes_or_goes():
    space = conditioned()
    every = {space.place_of(c) for c in space.candidates()}
    for start in every:
        for _, line in space.lines(start):
            assert set(line) <= every


def test_a_condition_that_the_base_never_meets_leaves_its_dimension_out_out_loud():
    vary = {"policy.block_size": {"one_of": [8, 16]}} | {"policy.victim": CONDITIONED["policy.victim"]}
    space = build_space(space_spec({"vary": vary}), make_spec(policy={"reserve_output": "full"}))
    assert [d.field for d in space.dimensions] == ["block_size"]
    assert "policy.victim left out" in space.notes[0]


CHAIN = {
    "policy.block_size": {"one_of": [8, 16]},
    "policy.eviction": {"one_of": ["lru", "fifo"], "when": {"policy.prefix_caching": True}},
    "policy.prefix_match": {"one_of": ["block", "partial"], "when": {"policy.eviction": "fifo"}},
    "policy.victim": {"one_of": ["last_admitted", "largest"], "when": {"policy.eviction": "lru"}},
}


def test_what_hangs_on_a_dimension_that_is_left_out_is_left_out_too_unless_the_base_meets_it():
    """What went wrong: only fields that the spec does not move were looked at, so it stayed, at one value."""
    space = build_space(space_spec({"vary": CHAIN}), make_spec(policy={"prefix_caching": False}))
    assert [d.field for d in space.dimensions] == ["block_size", "victim"]
    assert [note.partition(" left out")[0] for note in space.notes] == ["policy.eviction", "policy.prefix_match"]
    assert space.num_candidates == len(list(space.candidates())) == 4


@pytest.mark.parametrize("caching", [True, False])
def test_every_dimension_that_is_kept_moves_something(caching):
    space = build_space(space_spec({"vary": CHAIN}), make_spec(policy={"prefix_caching": caching}))
    for d in space.dimensions:
        assert len({c[d.field] for c in space.candidates() if d.field in c}) > 1, d.field


def test_a_condition_on_values_that_were_left_out_is_never_met():
    vary = {
        "policy.block_size": {"one_of": [16, 2048]},
        "policy.victim": {"one_of": ["last_admitted", "largest"], "when": {"policy.block_size": 2048}},
    }
    space = build_space(space_spec({"vary": vary}), make_spec())
    assert [d.field for d in space.dimensions] == ["block_size"]
    assert "policy.victim left out: it matters only under another block_size" in space.notes[1]


def test_nothing_left_to_vary_is_refused_with_what_was_left_out():
    with pytest.raises(SpecError, match=r"nothing is left to vary: policy\.eviction left out"):
        build_space(
            space_spec({"vary": {"policy.eviction": CHAIN["policy.eviction"]}}),
            make_spec(policy={"prefix_caching": False}),
        )


def test_a_condition_is_written_as_a_value_is():
    """What went wrong: `1GiB` was never equal to the bytes that a trial holds."""
    vary = {
        "pool.bytes": {"one_of": ["512MiB", "1GiB"]},
        "policy.victim": {"one_of": ["last_admitted", "largest"], "when": {"pool.bytes": "1GiB"}},
    }
    space = build_space(space_spec({"vary": vary}), make_spec(pool={"bytes": "1GiB"}))
    assert space.num_candidates == len(list(space.candidates())) == 1 + 2


def test_conditions_count_as_they_enumerate():
    vary = {
        "policy.prefix_caching": {"one_of": [True, False]},
        "policy.eviction": {"one_of": ["lru", "fifo", "lfu"], "when": {"policy.prefix_caching": True}},
        "policy.prefix_match": {"one_of": ["block", "partial"], "when": {"policy.eviction": ["lru", "fifo"]}},
    }
    space = build_space(space_spec({"vary": vary}), make_spec())
    assert space.num_candidates == len(list(space.candidates())) == (2 * 2 + 1) + 2


def test_engine_arguments_and_the_pool_move_like_any_field():
    vary = {
        "engine.args.scheduler_type": {"one_of": ["fifo", "prefill_first"]},
        "pool.bytes": {"powers_of_two": ["512MiB", "1GiB"]},
        "policy.block_size": {"one_of": [8, 16]},
    }
    space = build_space(space_spec({"vary": vary}), make_spec(pool={"bytes": "1GiB"}))
    specs = [space.suggest(c) for c in space.candidates()]
    assert {s.pool.bytes for s in specs} == {1 << 29, 1 << 30}
    assert {s.engine.args["scheduler_type"] for s in specs} == {"fifo", "prefill_first"}
    assert len({space.policy_of(s) for s in specs}) == 8
    assert space.contains(space.default)
    assert space.label(space.default) == "scheduler_type=fifo pool.bytes=1GiB block_size=16"
    assert [space.params_of(space.policy_of(s)) for s in specs] == list(space.candidates())


def test_an_argument_that_the_base_does_not_name_is_given_the_first_of_the_space_out_loud():
    spec = space_spec({"vary": {"engine.args.scheduler_type": {"one_of": ["fifo", "prefill_first"]}}})
    space = build_space(spec, make_spec())
    assert space.base.engine.args == {"scheduler_type": "fifo"}
    assert "taken to be fifo" in space.notes[0]
    args = {"scheduler_type": "prefill_first"}
    named = build_space(spec, make_spec(engine={"name": "torch_paged", "args": args}))
    assert named.default == named.policy_of(named.base)
    assert named.position(named.default) == (1,)


def test_what_says_where_a_trial_runs_cannot_move():
    for name in ("engine.name", "engine.python", "engine.env", "engine.device", "pool.tables_inside", "trace.path"):
        with pytest.raises(SpecError, match="is not a field"):
            space_spec({"vary": {name: {"one_of": [1]}}})


def test_more_devices_than_a_slot_has_are_refused():
    spec = space_spec({"vary": {"engine.tensor_parallel_size": {"powers_of_two": [1, 4]}}})
    engine = {"name": "vllm", "tensor_parallel_size": 2}
    with pytest.raises(SpecError, match="beyond the base's 2"):
        build_space(spec, make_spec(engine=engine))
    assert build_space(spec, make_spec(engine={**engine, "tensor_parallel_size": 4})).num_candidates == 3


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"vary": dict(reversed(CONDITIONED.items()))}, "has to stand before it"),
        (
            {"vary": {"policy.victim": {"one_of": ["largest"], "when": {"policy.nobody": "x"}}}},
            "is not a field of the pool policy",
        ),
        ({"vary": {"pool.bytes": {"one_of": ["1GiB"]}, "pool.blocks": {"one_of": [9]}}}, "given in one way"),
        ({"fixes": "device_budget", "vary": {"pool.bytes": {"one_of": ["1GiB"]}}}, "not both fixed and moved"),
        ({"vary": {"policy.block_size": {"one_of": [8, 8]}}}, "names a value twice"),
    ],
)
def test_a_condition_or_pool_that_cannot_be_is_refused(data, words):
    with pytest.raises(SpecError, match=words):
        space_spec(data)


READY_BASES = {
    "joint": {"pool": {"device_budget": "40GiB"}},
    "vllm": {"engine": {"name": "vllm"}, "pool": {"bytes": "1GiB"}},
    "vllm_hybrid": {"engine": {"name": "vllm"}, "pool": {"bytes": "1GiB"}},
    "transformers": {"engine": {"name": "transformers_cb"}, "pool": {"bytes": "1GiB"}},
}


@pytest.mark.parametrize("name", READY)
def test_every_ready_space_builds_over_its_engine_and_reads_back(name):
    base = make_spec(**{"pool": {"bytes": "1GiB"}, "policy": {"max_model_len": 8192}, **READY_BASES.get(name, {})})
    spec = load_space_spec(name)
    space = build_space(spec, base)
    assert spec.name == name
    assert space.enumerable
    assert space.num_candidates == {
        "block_size": 9, "pool_policy": 720, "joint": 8064, "vllm": 7200, "vllm_hybrid": 216, "transformers": 3920,
    }[name]  # fmt: skip
    first = next(space.candidates())
    assert space.params_of(space.policy_of(space.suggest(first))) == first
    assert space_spec(spec.model_dump(mode="json")) == spec


def test_a_joint_space_needs_the_device_s_bytes():
    with pytest.raises(SpecError, match=r"give pool\.device_budget"):
        build_space(load_space_spec("joint"), make_spec(pool={"bytes": "1GiB"}))
