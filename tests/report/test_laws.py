"""The map of classes and operations."""

import re
from pathlib import Path

import numpy as np
import torch

from madao import ClassPolicy, Policy
from madao.report import read_run, write_report
from madao.report.gallery import gallery
from madao.report.laws import heat_map
from tests.report.runs import write_run

NAMES = ("cat & dog", "<b>owl</b>", "fox")


def rows(text: str) -> dict[str, list[int]]:
    found = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', text)
    return {name: [int(share) for share in re.findall(r">(\d+)</td>", cells)] for name, cells in found}


def test_the_page_shows_what_each_class_chooses(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", classes=NAMES))
    assert run.labels is not None
    text = write_report([run], tmp_path / "report.html", figures=False)[0].read_text()
    start = text.index('data-map="classes"')
    table = text[start : text.index("</figure>", start)]
    heads = re.findall(r'<th scope="col">(\w+)</th>', table)
    assert heads[0] == "Rotate"  # as the shared part has it
    shown = rows(table)
    assert list(shown) == ["cat &amp; dog", "&lt;b&gt;owl&lt;/b&gt;", "fox", "shared"]
    assert run.policy is not None
    names = [operation.name for operation in run.policy.operations]
    for name, shares in zip(shown, [*run.policy.tables()[0].mean(0), run.policy.tensors()[0].mean(0)], strict=True):
        assert shown[name] == [round(100 * float(shares[names.index(head)])) for head in heads]
    assert shown["fox"] == shown["shared"]
    assert max(shown["cat &amp; dog"]) == shown["cat &amp; dog"][heads.index("Invert")] > 90
    assert "What the classes share prefers Rotate" in text
    assert "<h3>What the classes share</h3>" in text


def test_without_classes_there_is_none(tmp_path: Path) -> None:
    assert heat_map(Policy().spec()) == ""
    run = read_run(write_run(tmp_path / "run"))
    text = write_report([run], tmp_path / "report.html", figures=False)[0].read_text()
    assert "data-map" not in text
    assert "What the classes share" not in text


def test_of_many_classes_those_are_shown_that_depart_the_most() -> None:
    policy = ClassPolicy(300, 1, operations=["Rotate", "Invert"])
    with torch.no_grad():
        policy.get_parameter("selection_deviations")[:, 150:, 0] = 1
    text = heat_map(policy.spec())
    shown = rows(text)
    assert len(shown) == 201
    assert {str(number) for number in range(150, 300)} < shown.keys()
    assert "the 200 that depart the most from what they share" in text


def test_images_are_shown_under_draws_of_their_class() -> None:
    policy = ClassPolicy(2, 1, operations=["Invert", "Equalize"])
    with torch.no_grad():
        policy.selection_logits[:, 0] = 50
        policy.get_parameter("application_deviations")[:, 0] = 50
        policy.get_parameter("application_deviations")[:, 1] = -50
    samples = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 12), dtype=np.uint8)
    shown = gallery(policy.spec(), samples, np.array([0, 1, 1, 0]))
    captions = [{tile.caption for tile in row.tiles[1:]} for row in shown.draws]
    assert captions == [{"Invert"}, {"unchanged"}, {"unchanged"}, {"Invert"}]
    for unknown in (None, np.array([0, 1, 2, 0]), np.zeros(0, int)):
        both = {tile.caption for row in gallery(policy.spec(), samples, unknown).draws for tile in row.tiles[1:]}
        assert both == {"Invert", "unchanged"}
