"""Every account moves where it must: worked values, the recount, and the loss of any single update."""

import ast
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import trials.block_pool
import trials.ledger
from tests.builders import BUILT, build_engine, build_trace, policy_case, works_of
from tests.reference import PlainEngine
from tests.trials.test_scheduler import compare
from trials.content import Content
from trials.engine import GroupAudit, PoolGeometry, Work
from trials.ledger import ACCOUNTS, account_bytes, unbalanced_rows
from trials.recording import LEDGER_COLUMNS
from trials.recount import LedgerError, check_row, recount
from trials.spec import PoolPolicy

SOURCE = Path(trials.ledger.__file__)


def ledger_columns(rows: list[tuple[int, ...]]) -> dict[str, np.ndarray]:
    table = np.array(rows, np.int64)
    return {name: table[:, i] for i, name in enumerate(LEDGER_COLUMNS)}


@pytest.mark.parametrize(
    ("size", "blocks", "slack"), [(1, 68, 0), (4, 20, 12), (8, 12, 28), (16, 8, 60), (32, 4, 60)]
)
def test_four_live_17_token_sequences_hold_as_many_blocks_as_the_worked_values_say(
    size: int, blocks: int, slack: int
) -> None:
    trace = build_trace([17] * 4, [2] * 4)
    engine = build_engine(trace, PoolPolicy(block_size=size), num_blocks=80)
    for row in range(4):
        engine.add(Work(row, 17, 2))
    step = engine.step()
    assert step is not None
    row = step.ledger[0]
    assert row.allocated_blocks == blocks
    assert row.tail_slack_tokens == slack
    assert row.payload_tokens == 68


def test_payload_slack_and_free_add_up_to_the_worked_pool() -> None:
    """Block 16, 64 B a token, 12 blocks, four live 17-token sequences: 4352 + 3840 + 4096 = 12288."""
    trace = build_trace([17] * 4, [2] * 4)
    engine = build_engine(trace, PoolPolicy(block_size=16), num_blocks=12, bytes_per_token=64)
    for row in range(4):
        engine.add(Work(row, 17, 2))
    step = engine.step()
    assert step is not None
    accounts = account_bytes(ledger_columns([tuple(step.ledger[0])]), engine.facts.groups)
    assert (accounts["payload"][0], accounts["tail_slack"][0], accounts["free"][0]) == (4352, 3840, 4096)
    assert accounts["pool_bytes"][0] == 12288
    assert not len(unbalanced_rows(accounts))


@pytest.mark.parametrize(("tokens", "slack"), [(15, 1), (16, 0), (17, 15), (32, 0)])
def test_slack_of_a_sequence_is_what_its_last_block_lacks(tokens: int, slack: int) -> None:
    trace = build_trace([tokens], [2])
    engine = build_engine(trace, PoolPolicy(block_size=16))
    engine.add(Work(0, tokens, 2))
    step = engine.step()
    assert step is not None
    assert step.ledger[0].tail_slack_tokens == slack


@pytest.mark.parametrize("seed", range(80))
def test_accounts_add_up_to_the_pool_in_every_row_and_after_a_cold_start(seed: int) -> None:
    case = policy_case(seed)
    engine = case.engine()
    rng, rows = random.Random(seed), []
    for _ in range(2):
        engine.start(cold=True)
        assert not check_row(engine.ledger()[0], engine.audit().groups[0], engine.geometry)
        pending = works_of(case.trace)
        while True:
            if pending and rng.random() < 0.7:
                engine.add(pending.pop(0))
            step = engine.step()
            if step is None and not pending:
                break
            if step is not None:
                rows.append(tuple(step.ledger[0]))
            assert not check_row(engine.ledger()[0], engine.audit().groups[0], engine.geometry)
    accounts = account_bytes(ledger_columns(rows), engine.facts.groups)
    assert not len(unbalanced_rows(accounts))
    assert all((accounts[name] >= 0).all() for name in ACCOUNTS)


def test_two_groups_and_two_ranks_are_summed_and_balance_each_by_its_own_geometry() -> None:
    small = PoolGeometry(4, 10, 1, 8, 2, 10 * 34 + 5, 4, 4)
    large = PoolGeometry(16, 3, 0, 8, 0, 3 * 128, 16, 16)
    one = (7, 5, 0, 2, 4, 1, 7, 0, 0, 0, 0)  # 12 tokens = 3 blocks of 4, 2 cached, 4 free, 1 reserve
    two = (20, 12, 0, 0, 1, 0, 20, 0, 0, 0, 0)  # 32 tokens = 2 blocks of 16, 1 free
    rows = [(0, 0, *one), (0, 1, *one), (1, 0, *two), (1, 1, *two)] * 2
    accounts = account_bytes(ledger_columns(rows), (small, large), ranks=2)
    assert len(accounts["payload"]) == 2
    assert accounts["payload"][0] == 2 * (7 + 20) * 8
    assert accounts["padding"][0] == 2 * 10 * 2
    assert accounts["remainder"][0] == 2 * 5
    assert not len(unbalanced_rows(accounts))
    rows[3] = (1, 1, 19, *two[1:])
    assert list(unbalanced_rows(account_bytes(ledger_columns(rows), (small, large), ranks=2))) == [0]


def geometry(size: int = 4, blocks: int = 6) -> PoolGeometry:
    return PoolGeometry(size, blocks, 0, 1, 0, blocks * size, size, size)


def test_recount_counts_a_shared_block_once_in_payload_and_per_holder_in_logical() -> None:
    audit = GroupAudit({1: [0, 1], 2: [0, 2]}, {1: 6, 2: 5}, free=[3, 4], cached=[5], reserve=[])
    counted = recount(audit, geometry())
    assert counted["payload_tokens"] == 4 + 2 + 1
    assert counted["tail_slack_tokens"] == 2 + 3
    assert counted["logical_tokens"] == 11


@pytest.mark.parametrize(
    ("audit", "words"),
    [
        (GroupAudit({1: [0]}, {1: 4}, [1, 2, 3], [4], []), "block 5"),  # a block is lost
        (GroupAudit({1: [0]}, {1: 4}, [0, 1, 2, 3], [4, 5], []), "block 0"),  # free and held
        (GroupAudit({1: [0]}, {1: 4}, [1, 2, 3, 4], [4, 5], []), "block 4"),  # twice in the queues
        (GroupAudit({1: [0]}, {1: 5}, [1, 2, 3], [4, 5], []), "only 1 blocks"),  # tokens without a block
    ],
)
def test_recount_refuses_a_block_in_two_states_or_in_none(audit: GroupAudit, words: str) -> None:
    with pytest.raises(LedgerError, match=words):
        recount(audit, geometry())


def updates() -> Iterator[tuple[int, str]]:
    """Every statement of Accounts that changes an account, by line."""
    tree = ast.parse(SOURCE.read_text())
    book = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Accounts")
    for method in (n for n in book.body if isinstance(n, ast.FunctionDef)):
        for node in ast.walk(method):
            target = node.target if isinstance(node, ast.AugAssign) else None
            if isinstance(node, ast.Assign):
                target = node.targets[0]
            if isinstance(target, ast.Attribute):
                yield node.lineno, f"{method.name}: {ast.unparse(node)}"


def without(line: int) -> type:
    """Accounts with the statement at `line` deleted."""
    tree = ast.parse(SOURCE.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                ast.copy_location(ast.Pass(), n)
                if getattr(n, "lineno", 0) == line and isinstance(n, ast.stmt)
                else n
                for n in body
            ]
    space: dict[str, object] = {"__name__": "trials.ledger"}
    exec(compile(ast.fix_missing_locations(tree), str(SOURCE), "exec"), space)
    return space["Accounts"]  # type: ignore[return-value]


def drive(seeds: range) -> None:
    """Random loads under any policy against the plain engine, and a cold start after each."""
    for seed in seeds:
        case = policy_case(seed)
        engine = case.engine()
        plain = PlainEngine(case.policy, case.num_blocks, case.reserve, Content(case.trace))
        compare(engine, plain, seed, case.trace)
        engine.start(cold=True)
        assert not check_row(engine.ledger()[0], engine.audit().groups[0], engine.geometry)


@pytest.mark.parametrize(("line", "text"), list(updates()), ids=lambda value: str(value))
def test_deleting_any_single_update_of_an_account_is_noticed(
    line: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials.block_pool, "Accounts", without(line))
    with pytest.raises(AssertionError):
        drive(range(100))
    BUILT.clear()  # their accounts are wrong on purpose


def test_undisturbed_accounts_pass_the_same_drive() -> None:
    assert len(list(updates())) >= 29
    drive(range(100))
