"""Steps run before anything is measured: the largest chunk, mixed steps, and a pool as full as it can get."""

from trials.engine import PoolGeometry
from trials.engines.cb_loop import ServingThread
from trials.spec import PoolPolicy

_MOST_TOKENS = 16384  # a larger pool is not filled whole


def lengths(policy: PoolPolicy, geometry: PoolGeometry) -> list[int]:
    """Prompt lengths that together fill the pool, each as long as a request may be; two more tokens follow each."""
    usable = (geometry.num_blocks - geometry.reserve_blocks) * geometry.block_size
    left, out = min(usable, _MOST_TOKENS), []
    each = min(policy.max_model_len - 3, max(policy.max_num_batched_tokens, usable // policy.max_num_seqs))
    while left > geometry.block_size and len(out) < policy.max_num_seqs:
        length = max(1, min(each, left - geometry.block_size))
        out.append(length)
        left -= -(-(length + 3) // geometry.block_size) * geometry.block_size
    return out


def rehearse(thread: ServingThread, prompts: list[int], vocab: int) -> int:
    """Serve them all and forget them; the most bytes that a step had live beyond what it found, as torch counts.

    Raises EngineDied where the engine cannot serve what it was opened for.
    """
    from trials.engines.torch_peak import peak_bytes

    manager, processor = thread.manager, thread.manager.batch_processor
    for number, length in enumerate(prompts):
        # Told apart by their first tokens, so that nothing is shared and the pool really fills.
        ids = [number % vocab, number // vocab % vocab] + [(7 * i + number) % vocab for i in range(2, length)]
        manager.add_request(ids[:length], request_id=f"rehearsal {number}", max_new_tokens=3, eos_token_id=-1)
    most = 0
    while processor.has_pending_requests() or not manager.input_queue.empty():
        most = max(most, thread.turn(peak_bytes))
    while not manager.output_router.output_queue.empty():
        manager.output_router.output_queue.get_nowait()
    return most
