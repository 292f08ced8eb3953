"""Methods of ours with one place in their source changed, for the duration of a run.

A place that is no longer there is an error, so that a list of changes cannot go stale unnoticed.

`FLAW` puts back what vLLM 0.32 does under its priority policy and our scheduler purposely does not: a victim that
was already given its tokens of the step leaves blocks behind which can be found, though nothing ever computed
them, and which count as cached. Ours drops such content with the tokens (Serving.uncompute).
"""

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Changed:
    """A rule, and how its source changes. `place` is module:Class.method; each `old` stands exactly once in it."""

    rule: str
    place: str
    changes: tuple[tuple[str, str], ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The method as changed, while the block runs."""
        module_name, _, path = self.place.partition(":")
        module = importlib.import_module(module_name)
        class_name, _, method = path.partition(".")
        owner = getattr(module, class_name)
        original = owner.__dict__[method]
        source = textwrap.dedent(inspect.getsource(original))
        for old, new in self.changes:
            if source.count(old) != 1:
                raise LookupError(
                    f"{self.rule}: {self.place} has {source.count(old)} times {old!r}; update the list"
                )
            source = source.replace(old, new)
        space: dict[str, object] = {}
        exec(compile(f"from __future__ import annotations\n{source}", self.place, "exec"), vars(module), space)
        setattr(owner, method, space[method])
        try:
            yield
        finally:
            setattr(owner, method, original)


FLAW = (
    Changed("vLLM's flaw", "trials.serving:Serving.uncompute", (
        ("for chunk in self.chunks:",
         "self.__dict__.setdefault('phantom', {})[run.row] = run.computed_at(self.step) + (run.began >= 0)\n"
         "    for chunk in self.chunks:"),
        ("if run.num_indexed > full:", "if False:"),
    )),
    Changed("vLLM's flaw", "trials.serving:Serving.preempt", (
        ("full = held // self.block_size",
         "full = max(held, self.__dict__.get('phantom', {}).pop(run.row, 0)) // self.block_size"),
    )),
    Changed("vLLM's flaw", "trials.block_pool:BlockPool._let_go", (
        ("if place < full and self.caching:",
         "if self.caching and (place < full or self.index.key_of(block) is not None):"),
        ("kept += 1", "kept += 1; slack += 0 if place < full else min(size, (place + 1) * size - tokens)"),
    )),
)  # fmt: skip
