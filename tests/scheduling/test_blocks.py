"""The block pool."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from aioinfer.scheduling.blocks import SCRATCH_BLOCK, BlockPool


@given(
    num_blocks=st.integers(2, 40),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=60),
)
def test_no_block_is_owned_twice_or_lost(num_blocks: int, steps: list[tuple[bool, int]]) -> None:
    pool = BlockPool(num_blocks, block_size=4)
    owners: list[list[int]] = []
    for takes, number in steps:
        if takes:
            owners.append(pool.allocate(number % (pool.num_free + 1)))
        elif owners:
            pool.release(owners.pop(number % len(owners)))
        pool.check_integrity(owners)
        owned = [block for blocks in owners for block in blocks]
        assert len(owned) == len(set(owned)) == pool.num_used
        assert SCRATCH_BLOCK not in owned


def test_free_blocks_are_reused_oldest_first() -> None:
    pool = BlockPool(5, block_size=1)
    blocks = pool.allocate(4)
    pool.release([blocks[2]])
    pool.release([blocks[0]])
    assert pool.allocate(2) == [blocks[2], blocks[0]]


def test_blocks_for_rounds_up() -> None:
    pool = BlockPool(5, block_size=16)
    assert [pool.blocks_for(n) for n in (0, 1, 15, 16, 17, 32, 33)] == [0, 1, 1, 1, 2, 2, 3]


def test_misuse_is_found() -> None:
    pool = BlockPool(3, block_size=1)
    with pytest.raises(RuntimeError, match="3 blocks asked for, 2 are free"):
        pool.allocate(3)
    blocks = pool.allocate(1)
    with pytest.raises(RuntimeError, match="1 references, 0 owners"):
        pool.check_integrity([])
    pool.release(blocks)
    with pytest.raises(RuntimeError, match="not owned"):
        pool.release(blocks)
    with pytest.raises(ValueError, match="at least 2 blocks"):
        BlockPool(1, block_size=1)
