"""Aliases in files of settings: read as YAML says, as long as they stay small when they are written out."""

import itertools

import pytest
import yaml

from madao.config.plain_yaml import read_yaml

CHAIN = "\n".join(f"a{b}: &a{b} [*a{a}]" for a, b in itertools.pairwise(range(40)))
MERGES = "\n".join(f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 9)}]}}" for a, b in itertools.pairwise("abcdefghij"))


@pytest.mark.parametrize(
    "text",
    [
        "a: &few {x: 1, y: [2, 3]}\nb: {<<: *few, x: 5}\nc: *few",
        "a: &one 1\nb: [*one, *one]",
        f"a: &a [{', '.join('x' * 90)}]\nb: [{', '.join(['*a'] * 100)}]",
    ],
)
def test_aliases_stand_for_what_they_name(text: str) -> None:
    assert read_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "&a {b: {c: *a}}",
        f"a: &a [{', '.join('x' * 99)}]\nb: [{', '.join(['*a'] * 100)}]",
        f"a0: &a0 [x]\n{CHAIN}",
        f"a: &a {{x: 1}}\n{MERGES}",
        "a: *unknown",
    ],
    ids=["itself", "its parent", "ten thousand parts", "forty levels", "merges of merges", "no anchor"],
)
def test_aliases_that_grow_or_go_round_are_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        read_yaml(text)
