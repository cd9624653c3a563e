"""What a caller sees of one request."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from aioinfer.errors import ConsumerTooSlow, EngineFailed, InvalidRequest, Overloaded, PromptTooLong
from aioinfer.types import Delta, FinishReason, SamplingParams
from tests.engine.scripted import EOS, MAX_MODEL_LEN, ScriptedEngine, echo, says

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioinfer import RequestStream


async def read(stream: RequestStream) -> list[Delta]:
    async with stream:
        return [delta async for delta in stream]


def joined(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def test_a_stream_a_plain_answer_and_a_batch_say_the_same() -> None:
    async with ScriptedEngine(max_num_seqs=8) as engine:
        alone = [await engine.generate(f"prompt {i}", max_tokens=20 + i) for i in range(12)]
        streams = [engine.stream(f"prompt {i}", max_tokens=20 + i) for i in range(12)]
        streamed = await asyncio.gather(*map(read, streams))
        for completion, deltas in zip(alone, streamed, strict=True):
            assert joined(deltas) == completion.text
            assert [t for d in deltas for t in d.token_ids] == list(completion.token_ids)
            assert deltas[-1].finish_reason is FinishReason.LENGTH
            assert deltas[-1].usage == completion.usage
            assert all(d.finish_reason is None and d.usage is None for d in deltas[:-1])


async def test_usage_counts_the_prompt_and_what_was_generated() -> None:
    async with ScriptedEngine(says("abc")) as engine:
        completion = await engine.generate("12345>")
        assert completion.text == "abc"
        assert completion.finish_reason is FinishReason.STOP
        assert completion.usage.prompt_tokens == 6
        assert completion.usage.completion_tokens == 4  # the end token was generated too
        assert completion.usage.total_tokens == 10


async def test_split_characters_come_whole() -> None:
    """BUGS B01."""
    async with ScriptedEngine(says("🌶!")) as engine:
        deltas = await read(engine.stream(">"))
        assert joined(deltas) == "🌶!" == (await engine.generate(">")).text
        assert all("\N{REPLACEMENT CHARACTER}" not in delta.text for delta in deltas)


async def test_an_incomplete_character_at_the_end_comes_out_once() -> None:
    async with ScriptedEngine(says("a🌶")) as engine:
        completion = await engine.generate(">", max_tokens=3)
        assert completion.text == "a\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_stop_string_and_what_follows_never_leak(depth: int) -> None:
    """BUGS B08."""
    async with ScriptedEngine(says("abcDEFGHIJklm"), pipeline_depth=depth) as engine:
        for stop, text, num_tokens in (
            ("DEFGHIJ", "abc", 10),
            ("abcD", "", 4),
            ("m", "abcDEFGHIJkl", 13),
        ):
            deltas = await read(engine.stream(">", stop=stop))
            assert joined(deltas) == text
            assert deltas[-1].finish_reason is FinishReason.STOP
            assert deltas[-1].stop_reason == stop
            assert deltas[-1].usage is not None
            assert deltas[-1].usage.completion_tokens == num_tokens
            assert sum(len(d.token_ids) for d in deltas) == num_tokens
        held_back = await engine.generate(">", stop=["DEFGHIK"])
        assert held_back.text == "abcDEFGHIJklm"
        await engine.settle()


async def test_stop_tokens_end_the_text_and_are_named() -> None:
    async with ScriptedEngine(says("abcdef")) as engine:
        completion = await engine.generate(">", stop_token_ids=[ord("d")])
        assert completion.text == "abc"
        assert completion.stop_reason == ord("d")
        assert completion.token_ids == tuple(b"abcd")


async def test_ignore_eos_goes_on() -> None:
    async with ScriptedEngine(says("ab")) as engine:
        completion = await engine.generate(">", ignore_eos=True, max_tokens=5)
        assert completion.finish_reason is FinishReason.LENGTH
        assert completion.token_ids == (97, 98, EOS, EOS, EOS)
        assert completion.text == "ab"
        shown = await engine.generate(">", ignore_eos=True, max_tokens=3, skip_special_tokens=False)
        assert shown.text == "ab<eos>"


async def test_max_tokens_fills_the_context_when_not_given() -> None:
    async with ScriptedEngine(num_kv_blocks=4, block_size=16) as engine:
        completion = await engine.generate("x" * 60)
        assert completion.finish_reason is FinishReason.LENGTH
        assert completion.usage.completion_tokens == 4


async def test_chat_renders_the_template() -> None:
    async with ScriptedEngine(says("hello", after="~")) as engine:
        completion = await engine.chat([{"role": "user", "content": "hi~"}], max_tokens=30)
        assert completion.usage.prompt_tokens == len("user: hi~\nassistant:")


async def test_tokenize_and_detokenize() -> None:
    async with ScriptedEngine() as engine:
        ids = await engine.tokenize("añ")
        assert ids == list("añ".encode())
        assert await engine.detokenize(ids) == "añ"
        assert await engine.detokenize([97, EOS], skip_special_tokens=False) == "a<eos>"
        assert await engine.detokenize([]) == ""
        with pytest.raises(InvalidRequest, match="token ids go from 0 to 257"):
            await engine.detokenize([258])


@pytest.mark.parametrize(
    ("request_of", "error", "param"),
    [
        (lambda e: e.stream(""), InvalidRequest, "prompt"),
        (lambda e: e.stream([]), InvalidRequest, "prompt"),
        (lambda e: e.stream([1, 258]), InvalidRequest, "prompt[1]"),
        (lambda e: e.stream([1, -1]), InvalidRequest, "prompt[1]"),
        (lambda e: e.stream([1, 2.0]), InvalidRequest, "prompt[1]"),
        (lambda e: e.stream([True]), InvalidRequest, "prompt[0]"),
        (lambda e: e.stream(None), InvalidRequest, "prompt"),
        (lambda e: e.stream(b"abc"), InvalidRequest, "prompt"),
        (lambda e: e.stream({1, 2}), InvalidRequest, "prompt"),
        (lambda e: e.stream("x", {"max_tokens": 1}), InvalidRequest, "params"),
        (lambda e: e.stream("x", temperature=10**400), InvalidRequest, "temperature"),
        (lambda e: e.stream("\ud800"), InvalidRequest, "prompt"),
        (lambda e: e.stream("x" * MAX_MODEL_LEN), PromptTooLong, "prompt"),
        (lambda e: e.stream([1] * MAX_MODEL_LEN), PromptTooLong, "prompt"),
        (lambda e: e.stream("x", max_tokens=MAX_MODEL_LEN), PromptTooLong, "max_tokens"),
        (lambda e: e.stream("x", stop_token_ids=[258]), InvalidRequest, "stop_token_ids"),
        (lambda e: e.stream("x", temperature=-1), InvalidRequest, "temperature"),
        (lambda e: e.stream("x", temperature=float("nan")), InvalidRequest, "temperature"),
        (lambda e: e.stream("x", max_tokens=0), InvalidRequest, "max_tokens"),
        (lambda e: e.stream("x", top_p=0), InvalidRequest, "top_p"),
        (lambda e: e.stream("x", seed=2**63), InvalidRequest, "seed"),
        (lambda e: e.stream("x", stop=[""]), InvalidRequest, "stop"),
        (lambda e: e.stream("x", temprature=1), InvalidRequest, "temprature"),
        (lambda e: e.stream("x", SamplingParams(), max_tokens=1), InvalidRequest, "params"),
        (lambda e: e.stream_chat([]), InvalidRequest, "messages"),
        (lambda e: e.stream_chat([{"role": "user"}]), InvalidRequest, "messages[0].content"),
    ],
)
async def test_bad_input_is_named_and_disturbs_nobody(
    request_of: Callable[[ScriptedEngine], RequestStream], error: type[InvalidRequest], param: str
) -> None:
    async with ScriptedEngine() as engine:
        other = asyncio.create_task(read(engine.stream("other", max_tokens=50)))
        with pytest.raises(error) as caught:
            await request_of(engine)
        assert type(caught.value) is error
        assert caught.value.param == param
        expected = await engine.generate("other", max_tokens=50)
        assert joined(await other) == expected.text
        await engine.settle()


async def test_a_slow_reader_gets_merged_deltas() -> None:
    async with ScriptedEngine(says("abcdefgh")) as engine:
        async with engine.stream(">") as stream:
            first = await anext(stream)
            await engine.settle()
            rest = [delta async for delta in stream]
        assert len(rest) <= 1
        assert first.text + joined(rest) == "abcdefgh"


async def test_a_reader_that_never_reads_is_ended_with_its_own_error() -> None:
    async with ScriptedEngine(slow_consumer_s=0.0) as engine:
        async with engine.stream("x", max_tokens=2000) as stream:
            await engine.settle()  # although it was to run for 2000 tokens
            received = [await anext(stream)]
            with pytest.raises(ConsumerTooSlow, match="nobody read"):
                await anext(stream)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        assert 0 < len(received[0].token_ids) < 2000


async def test_cancel_ends_the_iteration_with_what_there_is() -> None:
    async with ScriptedEngine() as engine:
        async with engine.stream("x", max_tokens=2000) as stream:
            first = await anext(stream)
            stream.cancel()
            stream.cancel()
            rest = [delta async for delta in stream]
            assert rest[-1].finish_reason is FinishReason.ABORT
            assert rest[-1].usage == stream.usage
            assert first.text + joined(rest) == "".join(map(chr, expected(stream.usage.completion_tokens)))
        await engine.settle()


def expected(count: int) -> list[int]:
    tokens = [ord("x")]
    for _ in range(count):
        tokens.append(echo(tokens))
    return tokens[1:]


async def test_a_stream_that_is_never_started_owns_nothing() -> None:
    async with ScriptedEngine() as engine:
        stream = engine.stream("x")
        stream.cancel()
        assert engine.stats().num_waiting == 0
        assert stream.usage.total_tokens == 0


async def test_a_stream_cancelled_while_it_starts_ends_at_once() -> None:
    async with ScriptedEngine() as engine:
        stream = engine.stream("x", max_tokens=1000)
        starting = asyncio.create_task(stream.__aenter__())
        await asyncio.sleep(0)
        stream.cancel()
        await starting
        assert (await stream).finish_reason is FinishReason.ABORT
        assert (await stream).usage.completion_tokens == 0
        await engine.settle()


async def test_iterating_without_entering_is_refused() -> None:
    async with ScriptedEngine() as engine:
        with pytest.raises(RuntimeError, match="async with"):
            async for _ in engine.stream("x"):
                raise AssertionError("iterated")


async def test_awaiting_twice_gives_the_same_completion() -> None:
    async with ScriptedEngine() as engine:
        stream = engine.stream("x", max_tokens=5)
        assert await stream == await stream


async def test_a_start_that_failed_fails_the_same_way_again() -> None:
    async with ScriptedEngine() as engine:
        stream = engine.stream("")
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="prompt is empty"):
                await stream


async def test_a_second_reader_at_a_time_is_refused_and_the_first_reads_on() -> None:
    async with ScriptedEngine() as engine, engine.stream("x", max_tokens=50) as stream:
        engine.runner.gate.clear()
        first = asyncio.create_task(read(stream))
        await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="one reader at a time"):
            await anext(stream)
        with pytest.raises(RuntimeError, match="one reader at a time"):
            await stream
        engine.runner.gate.set()
        assert sum(len(delta.token_ids) for delta in await first) == 50


async def test_a_reader_that_was_cancelled_makes_room_for_another() -> None:
    async with ScriptedEngine() as engine, engine.stream("x", max_tokens=50) as stream:
        engine.runner.gate.clear()
        first = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.01)
        first.cancel()
        second = asyncio.create_task(stream._collect())
        await asyncio.sleep(0.01)
        engine.runner.gate.set()
        assert len((await second).token_ids) == 50


async def test_too_many_waiting_are_refused_with_a_hint() -> None:
    async with ScriptedEngine(max_num_seqs=1, max_waiting=2, pipeline_depth=1) as engine:
        engine.runner.gate.clear()
        streams = [engine.stream("x", max_tokens=2) for _ in range(3)]
        for stream in streams:
            await stream.__aenter__()
            await asyncio.sleep(0)  # the first one begins and leaves the queue
        with pytest.raises(Overloaded, match="2 requests wait already; at most 2 may") as caught:
            await engine.generate("x")
        assert 1 <= caught.value.retry_after_s <= 60
        engine.runner.gate.set()
        for stream in streams:
            assert (await stream).finish_reason is FinishReason.LENGTH
        body, _ = engine.metrics.render()
        assert b'admission_rejections_total{model_name="scripted",reason="requests"} 1.0' in body


async def test_too_many_waiting_tokens_are_refused() -> None:
    async with ScriptedEngine(max_num_seqs=1, max_waiting_tokens=100, pipeline_depth=1) as engine:
        engine.runner.gate.clear()
        streams = [engine.stream("x" * 60, max_tokens=2) for _ in range(2)]
        for stream in streams:
            await stream.__aenter__()
            await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="60 prompt tokens wait already; at most 100 may"):
            await engine.generate("x" * 60)
        engine.runner.gate.set()
        for stream in streams:
            await stream


async def test_a_failing_step_fails_what_is_in_flight_and_the_engine() -> None:
    async with ScriptedEngine() as engine:
        async with engine.stream("x", max_tokens=1000) as stream:
            await anext(stream)
            engine.runner.error = ValueError("device lost")
            with pytest.raises(EngineFailed, match="device lost") as caught:
                async for _ in stream:
                    pass
            assert isinstance(caught.value.__cause__, ValueError)
        assert engine.state == "failed"
        assert engine.failure is not None
        with pytest.raises(EngineFailed, match="device lost"):
            await engine.generate("y")


async def test_a_finished_stream_is_not_kept_alive_by_the_engine() -> None:
    async with ScriptedEngine() as engine:
        stream = engine.stream("x", max_tokens=5)
        await stream
        gone = weakref.ref(stream)
        del stream
        gc.collect()
        assert gone() is None
