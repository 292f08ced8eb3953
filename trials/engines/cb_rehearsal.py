"""Steps run before anything is measured: the largest chunk, mixed steps, and a pool as full as it can get."""

from trials.engines.cb_loop import ServingThread
from trials.engines.filling import ANSWERED, prompt_ids
from trials.engines.torch_peak import peak_bytes


def rehearse(thread: ServingThread, prompts: list[int], vocab_size: int) -> int:
    """Serve prompts of these lengths and forget them; the most bytes that a step had live beyond what it found.

    Raises EngineDied where the engine cannot serve what it was opened for.
    """
    manager, processor = thread.manager, thread.manager.batch_processor
    for number, length in enumerate(prompts):
        ids = prompt_ids(number, length, vocab_size)
        manager.add_request(ids, request_id=f"rehearsal {number}", max_new_tokens=ANSWERED, eos_token_id=-1)
    most = 0
    while processor.has_pending_requests() or not manager.input_queue.empty():
        most = max(most, thread.turn(peak_bytes))
    while not manager.output_router.output_queue.empty():
        manager.output_router.output_queue.get_nowait()
    return most
