"""From a spec's byte budget to blocks: the layout is geometry, and nothing else knows of it.

contiguous: one block of max_model_len tokens a sequence. paged: blocks of block_size. virtual: a sequence is
contiguous in virtual memory and grows by physical pages of `page_bytes`, one for each layer's K and V (vAttention,
arXiv 2405.04437). Its block is the tokens that one page holds of one layer; what the page has left is padding:

    block = 2 x num_layers pages     page [ token | token | ... | token | padding ]

Pure arithmetic.
"""

from collections.abc import Sequence

from trials.engine import PoolGeometry
from trials.model import DTYPE_BYTES
from trials.spec import TrialSpec

SHAPELESS = ("simulator", "vllm_scheduler", "vllm")  # engines that take KV of other shapes than K and V by head
MOST_BLOCKS = 1 << 26  # each is followed by its number; eight GPUs of 141 GB hold 9 million single tokens of an 8B
TABLE_ENTRY_BYTES = 4  # int32, as engines keep block tables on the device


def pages_per_block(spec: TrialSpec) -> int:
    """Physical pages behind a block, each mapped by a call of its own: K and V of every layer."""
    return 2 * spec.model.num_layers


def page_tokens(spec: TrialSpec) -> tuple[int, int]:
    """(tokens of one layer's K or V that a physical page holds, bytes of the page that are left over)."""
    return divmod(spec.policy.page_bytes, spec.model.kv_bytes_per_token // pages_per_block(spec))


def effective_block_size(spec: TrialSpec) -> int:
    """Tokens a block: the candidate's, a whole context (contiguous), or a page (virtual; 0: it holds not one)."""
    if spec.policy.layout == "virtual":
        return page_tokens(spec)[0]
    return spec.policy.max_model_len if spec.policy.layout == "contiguous" else spec.policy.block_size


def block_padding_bytes(spec: TrialSpec) -> int:
    """Bytes of a block that hold no token."""
    return page_tokens(spec)[1] * pages_per_block(spec) if spec.policy.layout == "virtual" else 0


def block_bytes(spec: TrialSpec) -> int:
    """All bytes of a block, padding included."""
    return effective_block_size(spec) * spec.model.kv_bytes_per_token + block_padding_bytes(spec)


def block_table_bytes(spec: TrialSpec, groups: Sequence[PoolGeometry] = (), ranks: int = 1) -> int:
    """Device block tables: int32 [max_num_seqs, ceil(max_model_len / block_size)] a group and rank, in bytes."""
    sizes = [group.block_size for group in groups] or [max(effective_block_size(spec), 1)]
    columns = sum(-(-spec.policy.max_model_len // size) for size in sizes)
    return spec.policy.max_num_seqs * columns * TABLE_ENTRY_BYTES * ranks


def workspace_bytes_of(spec: TrialSpec) -> int:
    """What the largest step has beside weights and pool, as far as shapes tell: activations of a layer for every
    token of the budget, and float32 logits for every sequence. For engines whose time is modelled too."""
    model, width = spec.model, DTYPE_BYTES[spec.model.dtype]
    heads = (model.num_query_heads + 2 * model.num_kv_heads) * model.head_dim
    token = (2 * model.hidden_size + heads + 2 * model.intermediate_size) * width
    return spec.policy.max_num_batched_tokens * token + spec.policy.max_num_seqs * model.vocab_size * 4


def pool_budget(spec: TrialSpec, workspace_bytes: int | None = None, tables_bytes: int | None = None) -> int | None:
    """Bytes that the pool may have, over all ranks; None where the spec counts blocks. May be negative.
    `workspace_bytes` None: as shapes tell."""
    pool, tables = spec.pool, block_table_bytes(spec) if tables_bytes is None else tables_bytes
    if pool.bytes is not None:
        return pool.bytes - (tables if pool.tables_inside else 0)
    if pool.device_budget is not None:
        workspace = workspace_bytes_of(spec) if workspace_bytes is None else workspace_bytes
        return pool.device_budget - spec.model.weights_bytes - tables - workspace
    return None


def one_table_serves(spec: TrialSpec) -> str | None:
    """Why one block table a sequence does not serve this model's layers in this engine and layout, or None."""
    model, engine = spec.model, spec.engine.name
    if not model.layers:
        return None
    kinds = ", ".join(sorted({part.kind for part in model.layers}))
    if spec.policy.layout != "paged":
        return f"layout {spec.policy.layout} is for models whose layers are all alike; {model.name} has {kinds}"
    if engine not in SHAPELESS:
        return f"engine {engine} computes with K and V of every token in every layer; {model.name} has {kinds}"
    if not model.uniform:
        return (
            f"engine {engine} has one block table a sequence; {model.name} has {kinds}, each with one of its own: "
            "use vllm_scheduler"
        )
    return None


def pool_geometry(spec: TrialSpec, workspace_bytes: int | None = None) -> PoolGeometry | str:
    """The pool that the spec's budget buys, or why it buys none.

    `bytes` is the pool (with `tables_inside`, pool plus block tables); `device_budget` also pays for weights,
    tables and `workspace_bytes`.
    """
    if (why := one_table_serves(spec)) is not None:
        return why
    size, block = effective_block_size(spec), block_bytes(spec)
    if size == 0:
        return (
            f"policy.page_bytes {spec.policy.page_bytes} holds not one token of a layer's K or V, which takes "
            f"{spec.model.kv_bytes_per_token // pages_per_block(spec)} bytes: use larger pages"
        )
    pool, budget = spec.pool, pool_budget(spec, workspace_bytes)
    if budget is None:
        budget = (pool.blocks or 0) * block
    blocks = max(budget, 0) // block
    if blocks <= pool.reserve_blocks:
        return (
            f"the pool has room for {blocks} blocks of {size} tokens ({block} bytes each) in {max(budget, 0)} "
            f"bytes, of which {pool.reserve_blocks} are reserved: no request fits; give it more bytes "
            "or smaller blocks"
        )
    if blocks > MOST_BLOCKS:
        return (
            f"the pool has room for {blocks} blocks of {size} tokens, and at most {MOST_BLOCKS} can be followed: "
            "give it fewer bytes or larger blocks"
        )
    quantum = size if spec.policy.prefix_caching and spec.policy.layout == "paged" else 0
    return PoolGeometry(
        block_size=size, num_blocks=blocks, reserve_blocks=pool.reserve_blocks,
        bytes_per_token=spec.model.kv_bytes_per_token, padding_bytes_per_block=block_padding_bytes(spec),
        pool_bytes=budget, kernel_block_size=size, reuse_quantum_tokens=quantum,
    )  # fmt: skip
