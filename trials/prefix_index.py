"""Which content is in the pool, and where: keys of the content tree to blocks.

Equal content is not merged: a second block of the same content stands behind the older one, a lookup returns the
oldest, and its eviction promotes the next (vLLM v1). With partial matching (TensorRT-LLM's partial reuse) the
blocks that follow a matched one are kept too, with whose content they hold, so that a common beginning can be
copied out of one of them: of those written before this step, since copies are made before anything is written.
"""

ROOT = -1  # the key in front of a sequence's first block


class PrefixIndex:
    """Knows keys and blocks; holders and queues are the pool's."""

    def __init__(self, partial: bool = False) -> None:
        self._oldest: dict[int, int] = {}  # key -> oldest block with that content
        self._younger: dict[int, list[int]] = {}  # key -> further blocks, oldest first
        self._key_of: dict[int, int] = {}
        self._partial = partial
        self._followers: dict[int, list[tuple[int, int]]] = {}  # parent key -> (block, row), oldest first
        self._parent_of: dict[int, tuple[int, int]] = {}  # block -> (parent key, row)
        self._unwritten: set[int] = set()  # registered since the last `settle`

    def key_of(self, block: int) -> int | None:
        return self._key_of.get(block)

    def known(self, blocks: list[int]) -> list[int]:
        """Those of the blocks that can be found."""
        key_of = self._key_of
        return [] if key_of.keys().isdisjoint(blocks) else [block for block in blocks if block in key_of]

    def match(self, keys: list[int], limit: int) -> list[int]:
        """Blocks of the longest run of leading keys that are known, at most `limit`; nothing is touched."""
        out = []
        oldest = self._oldest
        for key in keys if len(keys) <= limit else keys[:limit]:
            block = oldest.get(key)
            if block is None:
                break
            out.append(block)
        return out

    def followers(self, parent: int) -> list[tuple[int, int]]:
        """(block, row) of the written blocks known to follow a key; empty without partial matching."""
        found = self._followers.get(parent, [])
        unwritten = self._unwritten
        return [follower for follower in found if follower[0] not in unwritten] if unwritten else found

    def settle(self) -> None:
        """A step has run: what was registered for it is written."""
        self._unwritten.clear()

    def add(self, block: int, key: int, parent: int, row: int) -> None:
        self._key_of[block] = key
        if key in self._oldest:
            self._younger.setdefault(key, []).append(block)
        else:
            self._oldest[key] = block
        if self._partial:
            self._followers.setdefault(parent, []).append((block, row))
            self._parent_of[block] = (parent, row)
            self._unwritten.add(block)

    def drop(self, block: int) -> bool:
        """The block's content is gone. False if it could not be found anyway."""
        key = self._key_of.pop(block, None)
        if key is None:
            return False
        younger = self._younger.get(key)
        if younger is None:
            del self._oldest[key]
        else:
            if self._oldest[key] == block:
                self._oldest[key] = younger.pop(0)
            else:
                younger.remove(block)
            if not younger:
                del self._younger[key]
        if self._partial:
            parent, row = self._parent_of.pop(block)
            self._followers[parent].remove((block, row))
            if not self._followers[parent]:
                del self._followers[parent]
        return True

    def blocks(self) -> list[int]:
        return list(self._key_of)

    def clear(self) -> None:
        for table in (self._oldest, self._younger, self._key_of, self._followers, self._parent_of):
            table.clear()
        self._unwritten.clear()

    def contradiction(self) -> str | None:
        """What does not agree inside the index, in words."""
        listed = [*self._oldest.values(), *(b for more in self._younger.values() for b in more)]
        if sorted(listed) != sorted(self._key_of):
            return "the index and the indexed blocks disagree"
        if any(self._key_of[block] != key for key, block in self._oldest.items()):
            return "the index leads to a block with another key"
        return None
