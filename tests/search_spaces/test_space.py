"""Laws of spaces: what is allowed, in which order, and what is held fixed."""

import pytest
from made_specs import make_spec

from search_spaces.controls import CONTROLS, control_spec
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
    assert space.shape == (2, 3)


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
