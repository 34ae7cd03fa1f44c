"""Text from strangers' files, as it is shown."""

import unicodedata

import pytest

from madao.text import printable


@pytest.mark.parametrize("text", ["cat", "Straße 5 %", "猫", "a b", "no-break\xa0space", "'quoted' \"text\" \\ é"])
def test_ordinary_text_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize("character", ["\x1b", "\x07", "\n", "\r", "\x9b", "\u202e", "\u2028", "\ud800", "\x00"])
def test_characters_that_a_terminal_obeys_are_escaped(character: str) -> None:
    shown = printable(f"cat{character}owl")
    assert shown == f"cat{repr(character)[1:-1]}owl"
    shown.encode("utf-8")


def test_no_character_of_unicode_is_obeyed() -> None:
    shown = printable("".join(map(chr, range(0x110000))), limit=0x110000)
    assert not {"Cc", "Cf", "Cs", "Zl", "Zp"} & {*map(unicodedata.category, shown)}


def test_long_text_is_cut() -> None:
    assert printable("x" * 10_000_000, limit=10) == "x" * 9 + "…"
    assert printable("x" * 10, limit=10) == "x" * 10
