"""Keys are equal exactly where all tokens in front of a block's end are."""

import random

import numpy as np
import pytest

from tests.builders import build_trace, family_trace
from trials.content import Content
from trials.trace import make_trace


def shared_by_tokens(content: Content, rows: int, lengths: list[int]) -> list[list[tuple[int, int]]]:
    out = []
    for row in range(rows):
        tokens: list[tuple[int, int]] = []
        for node, end in content.path(row):
            tokens += [(node, at) for at in range(len(tokens), end)]
        assert len(tokens) == lengths[row]
        out.append(tokens)
    return out


@pytest.mark.parametrize("seed", range(60))
def test_keys_agree_exactly_where_token_tuples_do(seed: int) -> None:
    rng = random.Random(seed)
    per = rng.choice([3, 5, 8])
    prompts = [rng.randint(1, 60) for _ in range(8)]
    outputs = [rng.randint(1, 10) for _ in range(8)]
    ids = [[rng.choice([0, 0, 0, 1]) + 10 * k for k in range(-(-p // per))] for p in prompts]
    content = Content(build_trace(prompts, outputs, ids=ids, tokens_per_id=per))
    lengths = [p + o for p, o in zip(prompts, outputs, strict=True)]
    tokens = shared_by_tokens(content, 8, lengths)
    for size in (1, 2, 3, 7, 16):
        owner: dict[tuple[object, ...], int] = {}
        for row in range(8):
            full = lengths[row] // size
            keys = content.keys(row, size)
            keys += content.private_keys(row, size, len(keys), full)
            assert len(keys) == full
            for j, key in enumerate(keys):
                prefix = tuple(tokens[row][: (j + 1) * size])
                assert owner.setdefault(prefix, key) == key
        assert len(set(owner.values())) == len(owner)


@pytest.mark.parametrize("seed", range(30))
def test_shared_tokens_are_the_longest_prefix_that_another_row_has(seed: int) -> None:
    rng = random.Random(seed)
    prompts = [rng.randint(1, 30) for _ in range(6)]
    ids = [[rng.choice([0, 1]) + 10 * k for k in range(-(-p // 4))] for p in prompts]
    content = Content(build_trace(prompts, [3] * 6, ids=ids, tokens_per_id=4))
    tokens = shared_by_tokens(content, 6, [p + 3 for p in prompts])
    for row in range(6):
        longest = 0
        for other in range(6):
            if other == row:
                continue
            same = 0
            for a, b in zip(tokens[row], tokens[other], strict=False):
                if a != b:
                    break
                same += 1
            longest = max(longest, same)
        assert content.shared_tokens(row) == longest


def test_partial_last_id_is_shared_only_where_its_length_agrees() -> None:
    content = Content(build_trace([6, 6, 7], [1, 1, 1], ids=[[1, 2], [1, 2], [1, 2]], tokens_per_id=4))
    assert [content.shared_tokens(row) for row in range(3)] == [6, 6, 4]


def test_turn_that_inherits_the_parent_s_answer_shares_it_to_the_token() -> None:
    trace = make_trace(
        np.array([0, 1]), np.array([10, 20]), np.array([6, 4]),
        parent=np.array([-1, 0]), inherited_tokens=np.array([0, 13]),
    )  # fmt: skip
    content = Content(trace)
    assert [content.shared_tokens(row) for row in (0, 1)] == [13, 13]
    assert content.keys(0, 4) == content.keys(1, 4)
    assert len(content.keys(0, 4)) == 3


def test_prompt_tokens_are_equal_exactly_where_shared_and_differ_at_the_first_private_one() -> None:
    content = Content(build_trace([20] * 40, [2] * 40, ids=[[k % 4, 100 + k] for k in range(40)], tokens_per_id=8))
    rows = [content.prompt_tokens(row, 64) for row in range(40)]
    assert all(((r >= 0) & (r < 64)).all() for r in rows)
    for a in range(40):
        for b in range(a + 1, 40):
            same = np.flatnonzero(rows[a] != rows[b])
            assert int(same[0]) == (8 if a % 4 == b % 4 else 0)


def test_tokens_are_a_pure_function_of_content_not_of_process_or_order() -> None:
    trace = build_trace([20, 9], [2, 2], ids=[[1, 2, 3], [1, 2]], tokens_per_id=8)
    first = Content(trace).prompt_tokens(0, 1000)
    again = Content(trace)
    again.prompt_tokens(1, 1000)
    assert (again.prompt_tokens(0, 1000) == first).all()
    assert (again.prompt_tokens(1, 1000)[:8] == first[:8]).all()


def family_content(seed: int) -> tuple[Content, list[int]]:
    """Prefix trees, forks and turns; with the length of each row."""
    trace = family_trace(random.Random(seed), 10, 5)
    return Content(trace), (trace.num_prompt_tokens + trace.num_output_tokens).tolist()


@pytest.mark.parametrize("seed", range(40))
def test_common_tokens_are_counted_token_by_token_over_forks_and_turns(seed: int) -> None:
    content, lengths = family_content(seed)
    tokens = shared_by_tokens(content, len(lengths), lengths)
    for row in range(len(lengths)):
        longest = 0
        for other in range(len(lengths)):
            pairs = zip(tokens[row], tokens[other], strict=False)
            same = next((n for n, (a, b) in enumerate(pairs) if a != b), min(lengths[row], lengths[other]))
            assert content.common_tokens(row, other) == same
            longest = max(longest, same if other != row else 0)
        assert content.shared_tokens(row) == longest


@pytest.mark.parametrize("seed", range(40))
def test_straddling_keys_add_the_block_in_which_the_shared_part_ends_where_it_is_full(seed: int) -> None:
    content, lengths = family_content(seed)
    tokens = shared_by_tokens(content, len(lengths), lengths)
    for size in (1, 3, 4, 16):
        owner: dict[tuple[object, ...], int] = {}
        for row, length in enumerate(lengths):
            whole, shared = content.keys(row, size), content.shared_tokens(row)
            keys = content.keys(row, size, straddling=True)
            assert len(whole) == shared // size
            assert len(keys) == min(-(-shared // size), length // size)
            assert keys[: len(whole)] == whole
            keys += content.private_keys(row, size, len(keys), length // size)
            for j, key in enumerate(keys):
                assert owner.setdefault(tuple(tokens[row][: (j + 1) * size]), key) == key
        assert len(set(owner.values())) == len(owner)


def test_row_without_ids_continues_its_parent_and_one_with_ids_says_itself_what_it_repeats() -> None:
    from trials.trace import Ragged, TraceMeta

    trace = make_trace(
        np.zeros(3, np.int64), np.array([16, 20, 16]), np.array([8, 2, 2]), Ragged.of([[1], [], [1]]),
        TraceMeta(tokens_per_id=16), parent=np.array([-1, 0, 0]), inherited_tokens=np.array([0, 18, 16]),
    )  # fmt: skip
    content = Content(trace)
    assert [content.inherits(row) for row in range(3)] == [(-1, 0), (0, 18), (-1, 0)]
    assert [content.common_tokens(0, row) for row in (1, 2)] == [18, 16]
