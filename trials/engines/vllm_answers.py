"""The recorded answers in the place of what vLLM's model samples.

Written over the sampled token ids on the device, before the runner or the scheduler read them: what is cached,
hashed and computed next is the trace's own, so that two requests share what the trace says and no more (greedy
answers to equal prompts would be equal). Costs one small copy a step; model and sampler run as they are.
"""

from collections.abc import Callable
from typing import Any

import torch


class Answers:
    """Silent until `token_of` is set: request id -> the token that it is given in this step.

    `on_pick`, for tests: (request id, what the model itself would have said).
    """

    def __init__(self) -> None:
        self.token_of: Callable[[str], int] | None = None
        self.on_pick: Callable[[str, int], None] | None = None

    def take_over(self, runner: Any) -> bool:
        """Stand between the runner's sampler and the runner. False where there is no place for it."""
        for name, batch_at in (("_sample", None), ("sample", 1)):
            sampled = getattr(runner, name, None)
            if sampled is not None:
                setattr(runner, name, self._instead(sampled, runner, batch_at))
                return True
        return False

    def _instead(self, sampled: Callable[..., Any], runner: Any, batch_at: int | None) -> Callable[..., Any]:
        """Model Runner V1 keeps its batch itself, V2 is given it as its second argument."""

        def sample(*arguments: Any, **named: Any) -> Any:
            found = sampled(*arguments, **named)
            output = found if batch_at is None else found[0]
            batch = runner.input_batch if batch_at is None else arguments[batch_at]
            self._speak(output.sampled_token_ids, batch.req_ids)
            return found

        return sample

    def _speak(self, ids: torch.Tensor, names: list[str]) -> None:
        """`ids` [rows, 1]: the sampled tokens of the requests named, on the device."""
        if self.token_of is None or not ids.shape[0]:
            return
        spoken = names[: ids.shape[0]]
        if self.on_pick is not None:
            for name, token in zip(spoken, ids[:, 0].tolist(), strict=True):
                self.on_pick(name, token)
        told = torch.tensor([self.token_of(name) for name in spoken], dtype=ids.dtype)
        ids[:, 0].copy_(told, non_blocking=True)
