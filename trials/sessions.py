"""Sessions of a generated trace: turns that follow one another and repeat all that was said before."""

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from trials.laws import Law, Lengths
from trials.spec import Ns
from trials.trace import Trace
from trials.units import SpecError
from trials.weave import NewRows, described, woven

_TICK_NS = 1_000
_MOST_ROWS = 50_000_000
_TOUCHED = ("session", "parent", "inherited_tokens", "starts", "think_ns", "after")
_NOTE = "stamps of later turns leave out how long answers take: replay sessions closed"


class Sessions(Law):
    """Every row of the preset becomes the first turn of a session.

    `turns`: how many a session has. A turn's prompt is the prompt and the answer in front of it and `new_tokens`
    more; it comes a think time after that answer, exponential with mean `think`.
    """

    turns: Lengths
    new_tokens: Lengths
    think: Annotated[Ns, Field(gt=0)]


def in_sessions(trace: Trace, law: Sessions, output: Lengths, rng: np.random.Generator) -> Trace:
    """The trace with the later turns of its sessions, in order of time; SpecError beyond 50 million rows."""
    turns = law.turns.draw(len(trace), rng)
    later = int((turns - 1).sum())
    if len(trace) + later > _MOST_ROWS:
        raise SpecError(f"{len(trace) + later} turns are more than {_MOST_ROWS}; lower turns or rows")
    new_tokens, outputs = law.new_tokens.draw(later, rng).tolist(), output.draw(later, rng).tolist()
    think = (np.rint(rng.exponential(law.think / _TICK_NS, later)).astype(np.int64) * _TICK_NS).tolist()
    rows, drawn = NewRows(len(trace)), 0
    for root, count in enumerate(turns.tolist()):
        before, stamp = root, int(trace.arrival_ns[root])
        said = int(trace.num_prompt_tokens[root] + trace.num_output_tokens[root])
        for k in range(drawn, drawn + count - 1):
            stamp += think[k]
            prompt = said + new_tokens[k]
            before = rows.turn(root, before, (said, prompt, outputs[k]), stamp, think[k])
            said = prompt + outputs[k]
        drawn += count - 1
    named = replace(trace, session=np.arange(len(trace), dtype=np.int64))
    return described(woven(named, rows, by_time=True), _TOUCHED, _NOTE)
