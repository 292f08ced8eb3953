"""The size a parquet file announces, before anything of it is unpacked."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trials.parquet_footer import FooterError, unpacked_bytes


def _written(folder: Path, table: pa.Table, **options: object) -> Path:
    pq.write_table(table, folder / "t.parquet", **options)
    return folder / "t.parquet"


@pytest.mark.parametrize("row_group_size", [7, 1000])
def test_equals_what_pyarrow_reads_in_the_same_footer(tmp_path: Path, row_group_size: int) -> None:
    table = pa.table({"a": list(range(100)), "b": [[1, 2, 3]] * 100, "c": ["text of a row"] * 100})
    path = _written(tmp_path, table, row_group_size=row_group_size)
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    columns = [group.column(c) for group in groups for c in range(group.num_columns)]
    assert unpacked_bytes(path) == sum(max(8 * c.num_values, c.total_uncompressed_size) for c in columns)


def test_equal_values_in_few_bytes_count_in_full(tmp_path: Path) -> None:
    path = _written(tmp_path, pa.table({"a": pa.array([[7] * 1_000_000])}), compression="zstd")
    assert path.stat().st_size < 10_000
    assert unpacked_bytes(path) >= 8_000_000


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(footer=st.binary(max_size=200))
def test_any_bytes_give_a_number_or_a_footer_error(tmp_path: Path, footer: bytes) -> None:
    path = tmp_path / "odd"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    try:
        assert isinstance(unpacked_bytes(path), int)
    except FooterError:
        return


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PAR1", "too short"),
        (b"PAR1" + b"\0" * 20, "does not end in PAR1"),
        (b"PAR1" + b"\xff\xff\xff\xff" + b"PAR1", "longer than the file"),
        (b"PAR1" + b"\x1c" * 40 + (40).to_bytes(4, "little") + b"PAR1", "nested too deep"),
        (b"PAR1" + b"\x19\xfc\xff\xff\x7f" + (5).to_bytes(4, "little") + b"PAR1", "longer than the footer"),
        (b"PAR1" + b"\x00" + (1).to_bytes(4, "little") + b"PAR1", "without sizes"),
    ],
)
def test_damage_is_named(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "odd").write_bytes(data)
    with pytest.raises(FooterError, match=reason):
        unpacked_bytes(tmp_path / "odd")
