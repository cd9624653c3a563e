"""The pool of KV blocks: who owns which.

Pure bookkeeping over block numbers; the memory itself belongs to the runner.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SCRATCH_BLOCK = 0  # never handed out: padded rows of a captured graph write there


class BlockPool:
    """Reference-counted blocks of `block_size` tokens.

    Free blocks are reused oldest first, so that their contents stay as long as possible.

    Args:
        num_blocks: blocks in the device's cache, the scratch block included; at least 2.
        block_size: tokens per block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2 or block_size < 1:
            raise ValueError(f"need at least 2 blocks of at least 1 token, got {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = deque(range(SCRATCH_BLOCK + 1, num_blocks))
        self._refs = [0] * num_blocks

    @property
    def capacity(self) -> int:
        """Blocks that can be handed out at all."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.capacity - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks; the caller has checked `num_free`."""
        if count > len(self._free):
            raise RuntimeError(f"{count} blocks asked for, {len(self._free)} are free")
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._refs[block] = 1
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Give up one reference to each block."""
        for block in blocks:
            refs = self._refs[block] - 1
            if refs < 0:
                raise RuntimeError(f"block {block} is released but not owned")
            self._refs[block] = refs
            if refs == 0:
                self._free.append(block)

    def check_integrity(self, owned: Iterable[Iterable[int]]) -> None:
        """Prove the pool whole against the block lists of all owners; O(blocks), for tests and debugging.

        Raises:
            RuntimeError: a block is lost, owned by nobody, or free and owned.
        """
        expected = Counter(block for blocks in owned for block in blocks)
        free = set(self._free)
        if len(free) != len(self._free):
            raise RuntimeError("a block is in the free list twice")
        for block in range(self.num_blocks):
            if self._refs[block] != expected[block]:
                raise RuntimeError(f"block {block}: {self._refs[block]} references, {expected[block]} owners")
            if block != SCRATCH_BLOCK and (self._refs[block] == 0) != (block in free):
                raise RuntimeError(f"block {block} is lost or both free and owned")
