"""From a spec's byte budget to blocks: the layout is geometry, and nothing else knows of it.

contiguous: one block of max_model_len tokens a sequence. paged: blocks of block_size. Pure arithmetic.
"""

from trials.engine import PoolGeometry
from trials.spec import TrialSpec

TABLE_ENTRY_BYTES = 4  # int32, as engines keep block tables on the device


def effective_block_size(spec: TrialSpec) -> int:
    """Tokens a block: the candidate's, or a whole context where the layout is contiguous."""
    return spec.policy.max_model_len if spec.policy.layout == "contiguous" else spec.policy.block_size


def block_table_bytes(spec: TrialSpec) -> int:
    """Device block tables: int32 [max_num_seqs, ceil(max_model_len / block_size)], in bytes."""
    columns = -(-spec.policy.max_model_len // effective_block_size(spec))
    return spec.policy.max_num_seqs * columns * TABLE_ENTRY_BYTES


def pool_geometry(spec: TrialSpec, workspace_bytes: int = 0) -> PoolGeometry | str:
    """The pool that the spec's budget buys, or why it buys none.

    `bytes` is the pool (with `tables_inside`, pool plus block tables); `device_budget` also pays for weights,
    tables and `workspace_bytes`.
    """
    size = effective_block_size(spec)
    per_token = spec.model.kv_bytes_per_token
    block = size * per_token
    pool, tables = spec.pool, block_table_bytes(spec)
    if pool.blocks is not None:
        budget = pool.blocks * block
    elif pool.bytes is not None:
        budget = pool.bytes - (tables if pool.tables_inside else 0)
    else:
        assert pool.device_budget is not None
        budget = pool.device_budget - spec.model.weights_bytes - tables - workspace_bytes
    blocks = max(budget, 0) // block
    if blocks <= pool.reserve_blocks:
        return (
            f"the pool has room for {blocks} blocks of {size} tokens ({block} bytes each) in {max(budget, 0)} "
            f"bytes, of which {pool.reserve_blocks} are reserved: no request fits; give it more bytes "
            "or smaller blocks"
        )
    quantum = size if spec.policy.prefix_caching and spec.policy.layout == "paged" else 0
    return PoolGeometry(size, blocks, pool.reserve_blocks, per_token, 0, budget, size, quantum)
