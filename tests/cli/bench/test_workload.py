"""Prompts: as many as asked, about as long as asked, different, and the same again for the same seed."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from aioinfer.cli.bench.workload import Workload

WORKLOAD = Workload(concurrency=2, num_requests=8, prompt_tokens=32, output_tokens=4)


@given(num_requests=st.integers(1, 20), prompt_tokens=st.integers(1, 100), shared_prefix=st.integers(0, 50))
def test_size(num_requests: int, prompt_tokens: int, shared_prefix: int) -> None:
    prompts = replace(
        WORKLOAD, num_requests=num_requests, prompt_tokens=prompt_tokens, shared_prefix=shared_prefix
    ).prompts()
    assert len(prompts) == num_requests
    assert {len(prompt.split()) for prompt in prompts} == {prompt_tokens + shared_prefix}


def test_prompts_differ_and_repeat() -> None:
    prompts = [*WORKLOAD.prompts(), WORKLOAD.warm_up_prompt()]
    assert len(set(prompts)) == len(prompts)
    assert WORKLOAD.prompts() == WORKLOAD.prompts()
    assert not set(WORKLOAD.prompts()) & set(replace(WORKLOAD, seed=1).prompts())


def test_shared_prefix() -> None:
    prompts = replace(WORKLOAD, shared_prefix=20).prompts()
    assert len({" ".join(prompt.split()[:20]) for prompt in prompts}) == 1
    assert len({" ".join(prompt.split()[20:]) for prompt in prompts}) == len(prompts)
