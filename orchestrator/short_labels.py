"""Labels of a space with many dimensions as a page shows them: what differs from the default, and the block size.

`block_size=4 max_num_seqs=256 watermark=0 queue=fcfs ...` fills a table by itself; beside forty like it nobody sees
in what they differ. Spaces of one or two dimensions keep their labels.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from search_spaces.outcome import CandidateOutcome, Outcome

_FEW = 2  # fields of a label that is short already
_ALWAYS = "block_size="


def short_labels(candidates: Sequence[CandidateOutcome]) -> dict[str, str]:
    """Label -> its short form, of those that have one; no two become the same. Empty where labels are short."""
    usual = next((c.label for c in candidates if c.is_default), "")
    if len(usual.split()) <= _FEW:
        return {}
    found = {c.label: _short(c.label, usual.split()) for c in candidates if c.in_space}
    return found if len(set(found.values())) == len(found) else {}


def _short(label: str, usual: Sequence[str]) -> str:
    kept = [word for word in label.split() if word.startswith(_ALWAYS) or word not in usual]
    return " ".join(kept) or "the default"


def shortened(outcome: Outcome, short: Mapping[str, str]) -> Outcome:
    """The outcome with every label in it, and in its sentences, by its short form."""
    if not short:
        return outcome
    longest_first = sorted(short, key=len, reverse=True)
    label = re.compile(rf"(?<![\w=.])(?:{'|'.join(map(re.escape, longest_first))})(?![\w=]|\.\d)")

    def told(value: Any) -> Any:
        if isinstance(value, str):
            return label.sub(lambda found: short[found[0]], value)
        if isinstance(value, dict):
            return {key: told(one) for key, one in value.items()}
        return [told(one) for one in value] if isinstance(value, list | tuple) else value

    return Outcome.model_validate(told(outcome.model_dump()))
