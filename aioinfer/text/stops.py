"""Stop strings, found in text that arrives in pieces.

Owned by one request and used by one thread at a time.  Text that could still become a stop string is held
back; everything before it may be emitted.  Stop tokens are the scheduler's business.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class _Node:
    """A prefix of one or more stop strings.

    Attributes:
        depth: its length in characters.
        children: the next character to the longer prefix.
        fallback: the longest proper suffix of it that is a prefix too.
        stop: the longest stop string that it ends with, if any.
    """

    depth: int
    children: dict[str, _Node] = field(default_factory=dict)
    fallback: _Node | None = None
    stop: str | None = None


@lru_cache(maxsize=256)
def _automaton(stops: tuple[str, ...]) -> _Node:
    """The root of an Aho-Corasick automaton (Aho and Corasick, CACM 18(6), 1975).

    Cached, since clients send the same stops again and again; it is not changed after this.
    """
    root = _Node(depth=0)
    for stop in stops:
        node = root
        for char in stop:
            node = node.children.setdefault(char, _Node(depth=node.depth + 1))
        node.stop = stop
    queue = deque([root])
    while queue:
        parent = queue.popleft()
        for char, node in parent.children.items():
            node.fallback = _step(root, parent.fallback, char) if parent.fallback is not None else root
            node.stop = node.stop or node.fallback.stop
            queue.append(node)
    return root


def _step(root: _Node, node: _Node, char: str) -> _Node:
    while True:
        child = node.children.get(char)
        if child is not None:
            return child
        if node.fallback is None:
            return root
        node = node.fallback


class StopStrings:
    """Finds the first stop string to be complete, whatever the pieces the text comes in.

    Of several that are complete at the same character, the longest counts.  Each character is looked at
    once, so the cost does not depend on the number of stops nor on the length of the text so far.

    Args:
        stops: non-empty strings; none at all is the cheap case.
    """

    __slots__ = ("_held", "_matched", "_node", "_root")

    def __init__(self, stops: Sequence[str]) -> None:
        self._root = _automaton(tuple(stops)) if stops else None
        self._node = self._root
        self._held = ""
        self._matched: str | None = None

    def __bool__(self) -> bool:
        return self._root is not None

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that may be emitted now, and the stop string that was found, if one was.

        The stop string and what follows it are never emitted; after a match nothing is any more.
        """
        root, node = self._root, self._node
        if root is None or node is None:
            return text, None
        if self._matched is not None:
            return "", self._matched
        if node is root and root.children.keys().isdisjoint(text):
            return text, None
        num_held = len(self._held)
        text = self._held + text
        for end in range(num_held, len(text)):
            node = _step(root, node, text[end])
            if node.stop is not None:
                self._matched, self._held = node.stop, ""
                return text[: end + 1 - len(node.stop)], node.stop
        self._node = node
        emitted = len(text) - node.depth
        self._held = text[emitted:]
        return text[:emitted], None

    def flush(self) -> str:
        """The text held back, which no stop string came of."""
        held, self._held, self._node = self._held, "", self._root
        return held
