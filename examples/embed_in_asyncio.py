"""An engine inside an asyncio program: one answer, one stream, many at once, and one that is cut short.

python examples/embed_in_asyncio.py [MODEL]
"""

from __future__ import annotations

import asyncio
import sys

from aioinfer import Engine


async def main(model: str | None) -> None:
    async with Engine(model) as engine:
        completion = await engine.chat([{"role": "user", "content": "Say hello."}], max_tokens=16)
        print(f"answer: {completion.text!r}, {completion.usage.completion_tokens} tokens")

        print("stream: ", end="")
        async with engine.stream("The capital of France is", max_tokens=8, temperature=0) as stream:
            async for delta in stream:
                print(delta.text, end="", flush=True)
        print()

        prompts = [f"{number} plus one is" for number in ("One", "Two", "Three")]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(engine.generate(prompt, max_tokens=4)) for prompt in prompts]
        for prompt, task in zip(prompts, tasks, strict=True):
            print(f"batch:  {prompt!r} -> {task.result().text!r}")

        # Leaving the block, a timeout or cancelling the task ends the request at once.
        async with engine.stream("Once upon a time", max_tokens=1000, ignore_eos=True) as stream:
            async for _ in stream:
                if stream.usage.completion_tokens >= 5:
                    break
        print(f"cut:    running requests now: {engine.stats().num_running}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
