"""Two generations on one WebSocket of a running server; one of them is cancelled on the way.

python examples/websocket_client.py [URL]
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp


async def main(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}/v1/stream") as socket:
        await socket.send_json(
            {"type": "generate", "id": "short", "prompt": "The sea is", "max_tokens": 8, "temperature": 0}
        )
        await socket.send_json(
            {
                "type": "generate",
                "id": "endless",
                "messages": [{"role": "user", "content": "Count for ever."}],
                "max_tokens": 1000,
                "ignore_eos": True,
            }
        )
        running = {"short", "endless"}
        cancelled = False
        async for message in socket:
            event = message.json()
            match event["type"]:
                case "delta":
                    print(f"{event['id']}: {event['text']!r}")
                    if event["id"] == "endless" and not cancelled:
                        cancelled = True
                        await socket.send_json({"type": "cancel", "id": "endless"})
                case "finish":
                    usage = event["usage"]
                    print(
                        f"{event['id']}: {event['finish_reason']} after {usage['completion_tokens']} tokens"
                    )
                    running.remove(event["id"])
                case "error":
                    raise RuntimeError(event["error"]["message"])
            if not running:
                break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
