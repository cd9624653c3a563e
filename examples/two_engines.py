"""Two engines in one process and on one event loop, one of which answers the other.

python examples/two_engines.py [MODEL [MODEL]]
"""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise
from typing import Any

from aioinfer import Engine


async def main(first: str | None, second: str | None) -> None:
    options: dict[str, Any] = {"kv_cache_tokens": 4096, "torch_threads": 1}
    async with Engine(first, **options) as asks, Engine(second, **options) as answers:
        question = await asks.generate("A good question is: why", max_tokens=12, stop=("\n", "?"))
        print(f"question: why{question.text}?")
        answer = await answers.chat([{"role": "user", "content": f"Why{question.text}?"}], max_tokens=24)
        print(f"answer:   {answer.text}")


if __name__ == "__main__":
    models = [*sys.argv[1:3], None, None]
    asyncio.run(main(*next(pairwise(models))))
