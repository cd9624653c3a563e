from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioinfer.text.stops import StopStrings


def push_all(stops: StopStrings, pieces: list[str]) -> tuple[str, str | None, list[str]]:
    emitted = []
    for piece in pieces:
        text, stop = stops.push(piece)
        emitted.append(text)
        if stop is not None:
            return "".join(emitted), stop, emitted
    emitted.append(stops.flush())
    return "".join(emitted), None, emitted


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By definition: the first prefix that ends with a stop string; the longest such stop string."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


def test_b08_nothing_of_a_stop_string_is_emitted() -> None:
    assert push_all(StopStrings(["DEFGHIJ"]), ["DEF", "G", "HI", "J"]) == ("", "DEFGHIJ", ["", "", "", ""])


def test_b08_held_text_comes_out_when_the_match_fails() -> None:
    assert push_all(StopStrings(["DEFGHIJ"]), ["DEF", "G", "HI", "K"])[2] == ["", "", "", "DEFGHIK", ""]


def test_held_text_comes_out_at_the_end() -> None:
    assert push_all(StopStrings(["DEFGHIJ"]), ["abcDE", "F"])[2] == ["abc", "", "DEF"]


def test_only_what_could_still_match_is_held() -> None:
    assert push_all(StopStrings(["aab"]), ["aaa", "a", "b"])[2] == ["a", "a", ""]


def test_nothing_comes_after_a_match() -> None:
    stops = StopStrings(["\n"])
    assert stops.push("one\ntwo") == ("one", "\n")
    assert stops.push("three") == ("", "\n")
    assert stops.flush() == ""


def test_of_several_the_first_complete_one_wins_however_the_text_is_cut() -> None:
    for pieces in (["abc"], ["a", "b", "c"], ["ab", "c"]):
        assert push_all(StopStrings(["abc", "b"]), pieces)[:2] == ("a", "b")
    assert push_all(StopStrings(["bc", "abc"]), ["abc"])[:2] == ("", "abc")


def test_without_stop_strings_text_passes_through() -> None:
    stops = StopStrings([])
    assert not stops
    assert stops.push("anything") == ("anything", None)
    assert stops.flush() == ""


@given(
    st.lists(st.text("ab\n", min_size=1, max_size=6), min_size=1, max_size=5),
    st.lists(st.text("ab\n", max_size=5), max_size=12),
)
def test_equals_the_definition(stops: list[str], pieces: list[str]) -> None:
    text, stop, emitted = push_all(StopStrings(stops), pieces)
    assert (text, stop) == expected("".join(pieces), stops)
    # What was emitted before the last piece could not have been part of any stop string.
    assert expected("".join(pieces), stops)[0].startswith("".join(emitted[:-1]))


def test_each_character_is_looked_at_once() -> None:
    """A match that nearly succeeds again and again costs no more than one that never does."""
    looks = 0

    class Counting(str):
        def __getitem__(self, index: object) -> str:
            nonlocal looks
            looks += isinstance(index, int)
            return super().__getitem__(index)  # type: ignore[index]

        def __radd__(self, other: str) -> Counting:
            return Counting(other + str(self))

    stops = StopStrings(["a" * 1000 + "b"])
    for _ in range(100):
        stops.push(Counting("a" * 50))
    assert looks == 5000
