from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioinfer.text.detokenizer import Detokenizer, TokenBytes
from aioinfer.text.output import OutputText, TextUpdate
from aioinfer.text.stops import StopStrings

WORDS = ["DEF", "G", "HI", "J", "K", "ab", "a", "b"]
VOCABULARY = TokenBytes(dict(enumerate(WORDS)), (), {"type": "Fuse"})
CHILI = TokenBytes(
    {**{n: f"<0x{byte:02X}>" for n, byte in enumerate("🌶".encode())}, 4: "!"},
    (),
    {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
)


def output(*stops: str, vocabulary: TokenBytes = VOCABULARY) -> OutputText:
    return OutputText(Detokenizer(vocabulary), StopStrings(stops))


def ids(*words: str) -> list[int]:
    return [WORDS.index(word) for word in words]


def test_b08_with_tokens() -> None:
    text = output("DEFGHIJ")
    assert [text.push(ids(word)) for word in ("DEF", "G", "HI")] == [TextUpdate("", None, 1)] * 3
    assert text.push(ids("J")) == TextUpdate("", "DEFGHIJ", 1)


def test_b08_held_text_comes_out() -> None:
    text = output("DEFGHIJ")
    text.push(ids("DEF", "G", "HI"))
    assert text.push(ids("K")) == TextUpdate("DEFGHIK", None, 1)
    assert text.finish() == ""


def test_a_stop_inside_several_tokens_ends_at_its_token() -> None:
    assert output("GHI").push(ids("DEF", "G", "HI", "J", "K")) == TextUpdate("DEF", "GHI", 3)


def test_nothing_is_consumed_after_a_stop_within_a_token() -> None:
    assert output("E").push(ids("DEF", "G")) == TextUpdate("D", "E", 1)


def test_finish_gives_what_was_held() -> None:
    text = output("DEFGHIJ")
    assert text.push(ids("K", "DEF", "G")) == TextUpdate("K", None, 3)
    assert text.finish() == "DEFG"


def test_finish_shows_an_incomplete_character_once() -> None:
    text = output(vocabulary=CHILI)
    assert text.push([4, 0, 1, 2]) == TextUpdate("!", None, 4)
    assert text.finish() == "\ufffd"
    assert text.finish() == ""


def test_b01_with_a_stop_string() -> None:
    text = output("!", vocabulary=CHILI)
    assert [text.push([token]).text for token in range(4)] == ["", "", "", "🌶"]
    assert text.push([4]) == TextUpdate("", "!", 1)


@pytest.mark.parametrize("stops", [(), ("ab",), ("bb", "aab", "GHI")])
@given(st.lists(st.lists(st.integers(0, len(WORDS) - 1), max_size=6), max_size=6))
def test_portions_make_no_difference(stops: tuple[str, ...], portions: list[list[int]]) -> None:
    def run(portions: list[list[int]]) -> tuple[str, str | None, int]:
        text, parts, num_tokens = output(*stops), [], 0
        for portion in portions:
            update = text.push(portion)
            parts.append(update.text)
            num_tokens += update.num_tokens
            if update.stop is not None:
                return "".join(parts), update.stop, num_tokens
            assert update.num_tokens == len(portion)
        return "".join(parts) + text.finish(), None, num_tokens

    flat = [token for portion in portions for token in portion]
    assert run(portions) == run([[token] for token in flat]) == run([flat])
