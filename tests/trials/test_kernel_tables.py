"""Step times from kernel tables, against the laws that the made-up tables follow."""

import pytest

from tests.trials.made_run import decode_us, dense_us, prefill_us, write_tables
from trials.engine import StepShape
from trials.kernel_tables import KernelTables
from trials.plan import Chunk, Plan, Run
from trials.units import SpecError


@pytest.fixture
def tables(tmp_path):
    write_tables(tmp_path)
    return KernelTables.read(tmp_path, num_layers=2)


def test_layers_count_as_often_as_they_run_and_batches_are_padded_to_a_captured_graph(tables, tmp_path) -> None:
    assert tables.dense_us(30) == pytest.approx(2 * dense_us(30) + 2 * 2 * 1 + 7)
    padded = KernelTables.read(tmp_path, 2, captured=(64, 8))
    assert padded.dense_us(30) == pytest.approx(tables.dense_us(64))
    assert padded.dense_us(65) == pytest.approx(tables.dense_us(65))


def test_decodes_cost_what_they_read_where_reading_decides_however_it_is_spread(tables) -> None:
    assert tables.decode_us([300, 300]) == pytest.approx(decode_us(2, 300))
    assert tables.decode_us([100, 500]) == pytest.approx(decode_us(2, 300))
    assert tables.decode_us([3, 5]) == pytest.approx(decode_us(2, 16))  # below the table: the launch


def test_few_long_decodes_cost_what_few_were_measured_to_cost(tmp_path) -> None:
    """Where 1 sequence takes as long as 8 (nothing is saturated), the longest decides."""
    write_tables(tmp_path)
    path = tmp_path / "attention.csv"
    flat = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    for line in path.read_text().splitlines()[1:]:
        c, b, n, k, time_us = line.split(",")
        flat.append(f"{c},{b},{n},{k},{float(k) if c == '0' else time_us}")
    path.write_text("\n".join(flat) + "\n")
    assert KernelTables.read(tmp_path, 1).decode_us([20, 20, 900]) == pytest.approx(900)


@pytest.mark.parametrize(("chunk", "before"), [(16, 0), (100, 64), (40, 30), (8, 0), (256, 256), (512, 0)])
def test_attention_of_a_chunk_is_exact_for_its_own_law_between_the_points_and_beyond(tables, chunk, before) -> None:
    expected = prefill_us(chunk, before) if chunk >= 16 else chunk * prefill_us(16, before) / 16
    assert tables.chunk_us([(before, chunk)], 0, 0.0) == pytest.approx(expected)
    assert tables.chunk_us([(before, chunk)], 2, 100.0) == pytest.approx(expected)


def test_points_that_were_not_measured_are_taken_as_both_alone(tables) -> None:
    assert tables.chunk_us([(0, 64)], 8, 1024.0) == pytest.approx(prefill_us(64, 0))


def test_chunks_stand_for_one_with_as_many_tokens_and_pairs(tables) -> None:
    """64 tokens after 64 and 64 after 192: 128 tokens whose pairs are those of one chunk after 96."""
    assert tables.chunk_us([(64, 64), (192, 64)], 0, 0.0) == pytest.approx(prefill_us(128, 96))
    many = tables.chunk_us([(0, 16)] * 8, 0, 0.0)
    assert tables.chunk_us([(0, 16)], 0, 0.0) < many < tables.chunk_us([(0, 128)], 0, 0.0)


def test_a_step_is_dense_work_heads_for_every_sequence_and_attention_of_all_layers(tables) -> None:
    decoding = {0: Run(0, 90, 10, computed=99, began=0), 1: Run(1, 90, 10, computed=299, began=0)}
    chunks = [Chunk(Run(2, 64, 1), 0, 64, False)]
    plan = Plan(0, decoding, chunks, (), StepShape(2, 400, 26, 1, 64, 0, 2080, 2))
    attention = 2 * (decode_us(2, 200) + prefill_us(64, 0))
    step, told = tables.step_ns(plan)
    assert told == pytest.approx(attention * 1e3, abs=1)
    assert step == pytest.approx((tables.dense_us(66) + 3 * 10 + 1 + attention) * 1e3, abs=1)


def test_a_table_that_is_absent_or_lacks_a_row_is_named(tmp_path) -> None:
    with pytest.raises(SpecError, match=r"dense\.csv"):
        KernelTables.read(tmp_path, 1)
    write_tables(tmp_path)
    path = tmp_path / "attention.csv"
    path.write_text(path.read_text().replace("0,0,2,256,", "0,0,2,257,"))
    with pytest.raises(SpecError, match=r"attention\.csv: no row for"):
        KernelTables.read(tmp_path, 1)
