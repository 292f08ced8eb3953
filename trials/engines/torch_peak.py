"""How many bytes torch itself has live at the peak of a call, beyond those that were there before it.

Taken from torch's own record of every allocation, not from the process's size: what the process holds beyond
this stays a residual.
"""

from collections.abc import Callable
from typing import Any

import torch


def peak_bytes(call: Callable[[], Any]) -> int:
    """Run `call` in this thread; the most bytes that its CPU allocations had live at once."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profile:
        call()
    assert profile.profiler is not None
    moves = [
        (event.start_ns(), event.nbytes())
        for event in profile.profiler.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == torch.autograd.DeviceType.CPU
    ]
    live = peak = 0
    for _, size in sorted(moves):
        live += size
        peak = max(peak, live)
    return peak
