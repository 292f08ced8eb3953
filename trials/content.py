"""Which tokens are the same: the tree of content behind a trace.

A node is a stretch of tokens that follows its parent node's. A prefix id is a node under its predecessor; what a
row shares with nobody is a node of its own. Two tokens are the same exactly when node and position agree, so
the key of a block is (node that holds its last token, the position it ends at): exact for every block size,
with nothing hashed and nothing to collide.

    row 7   |-- id 0 --|-- id 41 --|.. private rest: prompt tail and answer ...
    row 9   |-- id 0 --|-- id 41 --|-- id 42 --|.. private rest ...
"""

import numpy as np

from trials.trace import Ints, Trace

Span = tuple[int, int]  # (node, position where it ends; the next span starts there)

_MOST_RECENT = 100_000  # keys kept for the next row with the same prefix: a few MB, whatever the trace
_SHIFT = 32  # a key is node << 32 | end; positions stay below 2**32
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Content:
    """The tree of one trace. Immutable once built; pure functions of (row, block size) and (node, position)."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._children: list[int] = [0]  # node -> number of children so far; node 0 is the root
        self._sibling: list[int] = [0]  # node -> its number among its parent's children
        self._start: list[int] = [0]
        self._paths: list[tuple[Span, ...]] = []
        self._build()
        self._shared: list[int] = []
        self._last_shared: list[int] = []
        self._find_shared()
        goes_on = (trace.inherited_tokens > 0) & (trace.prefix_ids.lengths == 0)
        self.continued: frozenset[int] = frozenset(trace.parent[goes_on].tolist())  # rows that others go on from
        self._recent: dict[tuple[int, int, int], list[int]] = {}  # (node, end, block size) -> keys up to there
        self._num_recent = 0

    def _node(self, parent: int, start: int) -> int:
        self._sibling.append(self._children[parent])
        self._start.append(start)
        self._children[parent] += 1
        self._children.append(0)
        return len(self._children) - 1

    def _build(self) -> None:
        trace, known = self._trace, dict[tuple[int, int, int], int]()
        per = trace.meta.tokens_per_id
        offsets, values = trace.prefix_ids.offsets.tolist(), trace.prefix_ids.values.tolist()
        prompts, outputs = trace.num_prompt_tokens.tolist(), trace.num_output_tokens.tolist()
        parents, inherited = trace.parent.tolist(), trace.inherited_tokens.tolist()
        for row, prompt in enumerate(prompts):
            path: list[Span] = []
            node = at = 0
            ids = values[offsets[row] : offsets[row + 1]]
            if not ids and inherited[row] > 0:
                path = _cut(self._paths[parents[row]], inherited[row])
                node, at = path[-1]
            for name in ids:
                # A partial last id is the same only where its length agrees too.
                end = at + per if at + per <= prompt else prompt
                place = (node, name, end - at)
                found = known.get(place)
                if found is None:
                    found = known[place] = self._node(node, at)
                node, at = found, end
                path.append((node, at))
            path.append((self._node(node, at), prompt + outputs[row]))
            self._paths.append(tuple(path))

    def _find_shared(self) -> None:
        """Per row: leading tokens that at least one other row has too, and the node of the last of them."""
        longest, second = [-1] * self.num_nodes, [-1] * self.num_nodes  # ends of rows' stretches of each node
        for path in self._paths:
            for node, end in path:
                first = longest[node]
                if end > first:
                    longest[node], second[node] = end, first
                elif end > second[node]:
                    second[node] = end
        for path in self._paths:
            # Whoever shares a node shares all in front of it, so the last shared one decides.
            shared, last = 0, 0
            for node, end in reversed(path):
                if second[node] >= 0:
                    shared, last = min(end, second[node]), node
                    break
            self._shared.append(shared)
            self._last_shared.append(last)

    @property
    def num_nodes(self) -> int:
        return len(self._children)

    def shared_tokens(self, row: int) -> int:
        """Leading tokens of the row (prompt and answer) that some other row of the trace has too."""
        return self._shared[row]

    def path(self, row: int) -> tuple[Span, ...]:
        return self._paths[row]

    def inherits(self, row: int) -> tuple[int, int]:
        """(parent, leading tokens) where the row's content continues its parent's, answer included; or (-1, 0)."""
        trace = self._trace
        if trace.inherited_tokens[row] == 0 or trace.prefix_ids.lengths[row]:
            return -1, 0
        return int(trace.parent[row]), int(trace.inherited_tokens[row])

    def common_tokens(self, row: int, other: int) -> int:
        """Leading tokens that two rows have in common."""
        common = 0
        for (node, end), (its_node, its_end) in zip(self._paths[row], self._paths[other], strict=False):
            if node != its_node:
                break
            common = min(end, its_end)
            if end != its_end:
                break
        return common

    def keys(self, row: int, block_size: int, straddling: bool = False) -> list[int]:
        """Keys of the row's leading full blocks that another row may ask for, in token order.

        `straddling`: and of the block in which the shared part ends, of which a part may be asked for.
        """
        limit = self._shared[row]
        if straddling and limit % block_size:
            limit = min(-(-limit // block_size) * block_size, self._paths[row][-1][1])
            return self._keys_of(row, limit, block_size)
        if limit < block_size:
            return []
        place = (self._last_shared[row], limit, block_size)
        found = self._recent.get(place)
        if found is None:
            found = self._recent[place] = self._keys_of(row, limit, block_size)
            self._num_recent += len(found)
            if self._num_recent > _MOST_RECENT:
                self._recent.clear()
                self._num_recent = 0
        return found.copy()

    def _keys_of(self, row: int, limit: int, block_size: int) -> list[int]:
        """Keys of the row's full blocks in its first `limit` tokens."""
        out: list[int] = []
        start = 0
        for node, end in self._paths[row]:
            stop = min(end, limit)
            base = node << _SHIFT
            out += range(base + (start // block_size + 1) * block_size, base + stop + 1, block_size)
            if end >= limit:
                break
            start = end
        return out

    def private_keys(self, row: int, block_size: int, first: int, stop: int) -> list[int]:
        """Keys of the row's full blocks first..stop-1, which only the row itself can ask for."""
        base = self._paths[row][-1][0] << _SHIFT
        return list(range(base + (first + 1) * block_size, base + stop * block_size + 1, block_size))

    def prompt_tokens(self, row: int, vocab_size: int) -> Ints:
        """Token ids of the prompt, [num_prompt_tokens] int64, below `vocab_size`; equal exactly where shared."""
        return self._leading(row, int(self._trace.num_prompt_tokens[row]), vocab_size)

    def row_tokens(self, row: int, vocab_size: int) -> Ints:
        """The same for prompt and answer together, [prompt + output]: what later rows repeat of this one."""
        return self._leading(row, self._paths[row][-1][1], vocab_size)

    def _leading(self, row: int, length: int, vocab_size: int) -> Ints:
        out = np.empty(length, np.int64)
        start = 0
        for node, end in self._paths[row]:
            stop = min(end, length)
            if stop > start:
                out[start:stop] = self._tokens(node, start, stop, vocab_size)
            start = end
        return out

    def _tokens(self, node: int, start: int, stop: int, vocab_size: int) -> Ints:
        """A pure function of (node, position); the node's first tokens spell its number among its siblings."""
        with np.errstate(over="ignore"):
            x = np.arange(start, stop, dtype=np.uint64) + np.uint64(node) * np.uint64(0x9E3779B97F4A7C15)
            x = (x ^ (x >> np.uint64(30))) * _MIX_1
            x = (x ^ (x >> np.uint64(27))) * _MIX_2
            x ^= x >> np.uint64(31)
        tokens = (x % np.uint64(vocab_size)).astype(np.int64)
        number, place = self._sibling[node], self._start[node]
        while True:
            number, digit = divmod(number, vocab_size)
            if start <= place < stop:
                tokens[place - start] = digit
            place += 1
            if number == 0:
                return tokens


def _cut(path: tuple[Span, ...], length: int) -> list[Span]:
    """The leading `length` tokens of a path."""
    out: list[Span] = []
    for node, end in path:
        out.append((node, min(end, length)))
        if end >= length:
            break
    return out
