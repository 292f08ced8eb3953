"""How long a step takes when nothing is executed: pure functions of a step's aggregates, in integer ns.

Written as text: `roofline:h100-sxm`, `table:FILE`, `linear:STEP_US,TOKEN_US,KV_NS`, `constant:STEP_US`,
`distserve:opt-13b-tp1`.
One call stands for one simulated step, so everything that can be known beforehand is looked up in it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trials.engine import StepShape, StepTime
from trials.model import DTYPE_BYTES, ModelSpec
from trials.step_tables import load_table, table_time
from trials.table_checks import require_model
from trials.units import SpecError, nearest

# KV is read in tiles of at most this many tokens, however large the block: published kernels are flat in block
# size from 16 on (SGLang PR 4832: 64 against 128 nothing; vllm_flash_attn 16 to 128 within 1 %).
KV_TILE_TOKENS = 16
_LARGEST = 1e9  # us: no step, token or block takes a quarter of an hour
_MOST_LOOKED_UP = 1 << 17  # tokens of a step; what a larger one takes is computed when it comes


@dataclass(frozen=True, slots=True)
class GPU:
    """Dense peaks from the vendor's sheet and the shares of them that published profiles reach.

    Shares: weights and KV at 64 % (DistServe, A100) to 73 % (BLIS, H100) of bandwidth; matrix products at 63 to
    66 % of peak from 512 tokens on (Vidur's profiles); prefill attention at 45 % (BLIS). Launch cost with graphs:
    32 us a layer and 126 us a step (BLIS).
    """

    bf16_tflops: float
    fp8_tflops: float  # that of bf16 where fp8 is only a storage format
    terabytes_per_s: float
    bandwidth_share: float = 0.70
    matmul_share: float = 0.62
    attention_share: float = 0.45
    layer_launch_ns: float = 32_000.0
    step_launch_ns: float = 126_000.0
    block_ns: float = 0.0  # of a decoded sequence's block, per layer; 0 for kernels that hide the look-up

    def matmul_flops_per_ns(self, dtype: str) -> float:
        """Reached operations per ns; float32 runs as TF32, at half of bf16."""
        peak = {"fp8": self.fp8_tflops, "float32": self.bf16_tflops / 2}.get(dtype, self.bf16_tflops)
        return peak * 1e3 * self.matmul_share

    @property
    def bytes_per_ns(self) -> float:
        return self.terabytes_per_s * 1e3 * self.bandwidth_share


GPUS: dict[str, GPU] = {
    "a100-80gb-sxm": GPU(312, 312, 2.039),
    "h100-sxm": GPU(989, 1979, 3.35),
    "h200-sxm": GPU(989, 1979, 4.8),
    "b200": GPU(2250, 4500, 8.0),
    "l4": GPU(121, 242, 0.30),
    "l40s": GPU(362, 733, 0.864),
    "mi300x": GPU(1307, 2615, 5.3),
}


@dataclass(frozen=True, slots=True)
class Scale:
    """What a step-time model needs to know beside the step itself."""

    model: ModelSpec
    block_size: int
    max_num_batched_tokens: int
    block_term: bool = True  # False: what a block costs beside its tokens is left out


def step_time(
    text: str, model: ModelSpec, block_size: int, max_num_batched_tokens: int = 2048, block_term: bool = True
) -> StepTime:
    """The step-time function named by `text`: StepShape -> (step ns, attention ns).

    `max_num_batched_tokens` is how far the tables are made beforehand; larger steps are computed. Without
    `block_term` blocks cost nothing beside their tokens, as if the kernel did not know of them. SpecError where the
    form, the GPU or a number is unknown.
    """
    form, _, arguments = text.partition(":")
    if form not in FORMS:
        raise SpecError(f"step_time {text!r}: the form {form!r} does not exist; {nearest(form, FORMS)}")
    upto = min(max_num_batched_tokens, _MOST_LOOKED_UP)
    return FORMS[form](arguments, Scale(model, block_size, upto, block_term))


def _linear_layers(gpu: GPU, model: ModelSpec) -> Callable[[int], float]:
    """ns of all layers' matrix products, KV writes and launches for a number of tokens; 0 tokens cost nothing."""
    params = model.num_layers * model.layer_params
    weights = params * DTYPE_BYTES[model.dtype] / gpu.bytes_per_ns
    per_token = 2 * params / gpu.matmul_flops_per_ns(model.dtype)
    write = model.kv_bytes_per_token / gpu.bytes_per_ns
    launch = model.num_layers * gpu.layer_launch_ns + gpu.step_launch_ns

    def cost(tokens: int) -> float:
        return max(weights, per_token * tokens) + write * tokens + launch if tokens else 0.0

    return cost


def _output_head(gpu: GPU, model: ModelSpec) -> Callable[[int], float]:
    """ns of the logits of a number of rows."""
    params = model.vocab_size * model.hidden_size
    weights = params * DTYPE_BYTES[model.dtype] / gpu.bytes_per_ns
    per_row = 2 * params / gpu.matmul_flops_per_ns(model.dtype)
    return lambda rows: max(weights, per_row * rows) if rows else 0.0


def _looked_up(cost: Callable[[int], float], upto: int) -> tuple[list[int], Callable[[int], int]]:
    """Costs of 0 .. upto in whole ns, and the function that they were made with, for what lies beyond."""
    return [round(cost(n)) for n in range(upto + 1)], lambda n: round(cost(n))


def _roofline(arguments: str, scale: Scale) -> StepTime:
    """max(operations, bytes) of the layers, and attention by what it reads (decode) or multiplies (prefill)."""
    if arguments not in GPUS:
        raise SpecError(f"step_time roofline: the GPU {arguments!r} does not exist; {nearest(arguments, GPUS)}")
    return roofline(GPUS[arguments], scale)


def roofline(gpu: GPU, scale: Scale) -> StepTime:
    """The roofline of a GPU, for one model, block size and token budget."""
    model, size = scale.model, scale.block_size
    upto = scale.max_num_batched_tokens
    layers, more_layers = _looked_up(_linear_layers(gpu, model), upto)
    head, more_head = _looked_up(_output_head(gpu, model), upto)
    read = model.kv_bytes_per_token / gpu.bytes_per_ns
    heads = model.num_query_heads * model.head_dim * model.num_layers
    pair = 4 * heads / (gpu.bf16_tflops * 1e3 * gpu.attention_share)
    block = gpu.block_ns * model.num_layers if scale.block_term else 0.0
    tile = KV_TILE_TOKENS - 1 if scale.block_term else 0
    by_part = _attention_by_part(gpu, model) if model.layers else None

    def step(shape: StepShape) -> tuple[int, int]:
        decodes, context, blocks, _, tokens, before, pairs, sampled = shape
        work = decodes + tokens
        # Rounded up to blocks, but never by more than a tile a sequence.
        padded = blocks * size
        if padded > context + tile * decodes:
            padded = context + tile * decodes
        if by_part is None:
            attention = int(read * (padded + before) + block * blocks + pair * pairs)
        else:
            attention = int(by_part(shape, padded) + block * blocks)
        if work > upto or sampled > upto:
            return more_layers(work) + more_head(sampled) + attention, attention
        return layers[work] + head[sampled] + attention, attention

    return step


def _attention_by_part(gpu: GPU, model: ModelSpec) -> Callable[[StepShape, int], float]:
    """ns of attention where layers differ: (step, KV tokens that decodes read in a layer that keeps all) -> ns.

    A windowed layer reads at most its window a sequence; the step tells sums only, so of sequences on both sides of
    the window it is taken to read a little too much. A state is read and written whole, once a sequence.
    """
    parts = [
        (model.part_bytes_per_token(part) / gpu.bytes_per_ns, part.window or 1 << 62,
         4 * model.num_query_heads * (part.head_dim or model.head_dim) * part.num_layers
         / (gpu.bf16_tflops * 1e3 * gpu.attention_share))
        for part in model.parts if part.kind != "mamba"
    ]  # fmt: skip
    state = 2 * model.state_bytes / gpu.bytes_per_ns

    def cost(shape: StepShape, read: int) -> float:
        decodes, _, _, chunks, tokens, before, pairs, _ = shape
        total = state * (decodes + chunks)
        for size, window, pair in parts:
            total += size * (min(read, window * decodes) + min(before, window * chunks))
            total += pair * min(pairs, window * tokens)
        return total

    return cost


def _numbers(form: str, arguments: str, least: int, most: int) -> list[float]:
    """Comma-separated numbers, not negative; those left out are 0."""
    try:
        found = [float(part) for part in arguments.split(",")]
    except ValueError:
        raise SpecError(f"step_time {form}:{arguments}: numbers separated by commas are needed") from None
    if not least <= len(found) <= most or not all(0 <= x <= _LARGEST for x in found):
        said = f"{least} to {most} numbers, none negative or over {_LARGEST:g}, are needed"
        raise SpecError(f"step_time {form}:{arguments}: {said}")
    return found + [0.0] * (most - len(found))


def _linear(arguments: str, scale: Scale) -> StepTime:
    """STEP_US, TOKEN_US, KV_NS, BLOCK_NS, PAIR_NS: a step, a computed token, a KV token read, a block, a pair."""
    step_us, token_us, kv, block, pair = _numbers("linear", arguments, 1, 5)
    base, token = step_us * 1e3, token_us * 1e3
    block = block if scale.block_term else 0.0

    def step(shape: StepShape) -> tuple[int, int]:
        decodes, context, blocks, _, tokens, before, pairs, _ = shape
        attention = int(kv * (context + before) + block * blocks + pair * pairs)
        return int(base + token * (decodes + tokens)) + attention, attention

    return step


def _constant(arguments: str, _: Scale) -> StepTime:
    """STEP_US: every step takes as long, none of it attention."""
    (step_us,) = _numbers("constant", arguments, 1, 1)
    ns = int(step_us * 1e3)
    return lambda shape: (ns, 0)


@dataclass(frozen=True, slots=True)
class Phases:
    """ms: prefill a + b S + c Q, decode a + b K + c n. S: prompt tokens, Q: their squares, K: context, n: batch."""

    prefill: tuple[float, float, float]
    decode: tuple[float, float, float]  # n below LARGE_BATCH
    large: tuple[float, float, float]


LARGE_BATCH = 95
DISTSERVE: dict[str, Phases] = {  # A100-80G, fitted by DistServe's authors on their engine
    "opt-13b-tp1": Phases((18.10, 0.1019, 7.12e-6), (19.93, 6.27e-4, 0.0385), (7.17, 5.80e-4, 0.1583)),
    "opt-13b-tp2": Phases((14.74, 0.0686, 2.45e-6), (13.29, 3.41e-4, 0.0630), (10.64, 3.12e-4, 0.0856)),
    "opt-13b-tp4": Phases((12.06, 0.0381, 5.2e-7), (10.26, 1.88e-4, 0.0327), (10.48, 1.71e-4, 0.0457)),
    "opt-66b-tp2": Phases((43.06, 0.2742, 2.25e-5), (48.29, 9.42e-4, 0.1276), (28.73, 4.74e-4, 0.2962)),
}


def _distserve(arguments: str, _: Scale) -> StepTime:
    """DistServe's forms (OSDI'24); a mixed step is their sum. The model is the one fitted, not the spec's.

    Squares come from pairs: a chunk of t tokens after c has t c + t (t + 1) / 2 pairs and adds 2 t c + t t.
    """
    if arguments not in DISTSERVE:
        raise SpecError(f"step_time distserve: {arguments!r} does not exist; {nearest(arguments, DISTSERVE)}")
    fit = DISTSERVE[arguments]

    def step(shape: StepShape) -> tuple[int, int]:
        decodes, context, _, _, tokens, _, pairs, _ = shape
        ms = attention = 0.0
        if tokens:
            a, b, c = fit.prefill
            attention += c * (2 * pairs - tokens)
            ms += a + b * tokens
        if decodes:
            a, b, c = fit.decode if decodes < LARGE_BATCH else fit.large
            attention += b * context
            ms += a + c * decodes
        return round((ms + attention) * 1e6), round(attention * 1e6)

    return step


def _table(arguments: str, scale: Scale) -> StepTime:
    """FILE: step times measured on an engine, interpolated."""
    table = load_table(Path(arguments))
    require_model(table, scale.model)
    return table_time(table, scale.max_num_batched_tokens, scale.block_size, scale.block_term)


FORMS: dict[str, Callable[[str, Scale], StepTime]] = {
    "roofline": _roofline,
    "linear": _linear,
    "constant": _constant,
    "distserve": _distserve,
    "table": _table,
}
