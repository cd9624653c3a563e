"""A chat with a running server through the official openai package.

python examples/chat_client.py [URL]
"""

from __future__ import annotations

import sys

from openai import OpenAI


def main(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    with client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Name a colour."}],
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    ) as chunks:
        for chunk in chunks:
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
            if chunk.usage:
                print(f"\n[{model}: {chunk.usage.completion_tokens} tokens]")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
