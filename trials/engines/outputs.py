"""The tokens that a row is given: the trace's own, or, of an answer that it inherits, what was really said.

`recorded`: prompts and answers are the content tree's, so that what two requests share is the trace's and no more.
`live`: the engine's own answers stand, and a turn or fork repeats its parent's as far as it was given when the row
came; the rest, and that of a parent that was never served, is the trace's.
"""

from typing import NamedTuple

from trials.content import Content


class Told(NamedTuple):
    """Token ids of one row. `answer` is what it is to be given; empty where the engine's own answer stands."""

    prompt: list[int]
    answer: list[int]


class Outputs:
    """Of one replay: `clear()` when the next begins. `limit`: ids of content are below it."""

    def __init__(self, content: Content, limit: int, live: bool) -> None:
        self._content, self._limit, self.live = content, limit, live
        self._heard: dict[int, list[int]] = {}  # row that others continue -> all that it has been told and has said

    def clear(self) -> None:
        self._heard.clear()

    def told(self, row: int, num_prompt_tokens: int) -> Told:
        """What the row is asked, and what it is to answer."""
        tokens = self._content.row_tokens(row, self._limit).tolist()
        prompt, answer = tokens[:num_prompt_tokens], tokens[num_prompt_tokens:]
        if not self.live:
            return Told(prompt, answer)
        said = self._inherited(row)
        prompt[: len(said)] = said
        if row in self._content.continued:
            self._heard[row] = list(prompt)
        return Told(prompt, [])

    def _inherited(self, row: int) -> list[int]:
        """What stands in front of the row's own tokens, as far as somebody was really told or said it."""
        line = list[tuple[int, int]]()
        while row not in self._heard:
            parent, count = self._content.inherits(row)
            if parent < 0:
                break
            line.append((row, count))
            row = parent
        known = self._heard.get(row, [])
        for place, (child, count) in enumerate(reversed(line)):
            known = known[:count]
            if place < len(line) - 1:  # one that was never served: what it would have been asked
                prompt = self._content.prompt_tokens(child, self._limit).tolist()
                known = known + prompt[len(known) :]
        return known

    def said(self, row: int, tokens: list[int]) -> None:
        """The row was answered so many tokens more."""
        heard = self._heard.get(row)
        if heard is not None:
            heard += tokens
