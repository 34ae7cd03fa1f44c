"""The map of classes or images and operations."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from madao import ClassPolicy, ImagePolicy, Policy
from madao.report import read_run, write_report
from madao.report.gallery import gallery
from madao.report.heatmap import heat_map
from tests.helpers.policies import inverting_class, inverting_dark
from tests.helpers.run_directories import write_run

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
    assert "The policy that all classes share prefers Rotate" in text


def test_the_page_shows_what_each_image_chooses(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    samples = np.load(path / "samples.npz")["images"]
    policy = ImagePolicy()
    policy.standardise(torch.from_numpy(samples))
    with torch.no_grad():
        policy.get_parameter("selection_outputs").add_(3 * torch.randn(2, 16, 14))
    policy.spec().save(path / "policy.json")
    text = write_report([read_run(path)], tmp_path / "report.html", figures=False)[0].read_text()
    start = text.index('data-map="images"')
    table = text[start : text.index("</figure>", start)]
    heads = re.findall(r'<th scope="col">(\w+)</th>', table)
    shown = list(rows(table).items())
    assert len(shown) == 9
    assert all(name.startswith('<img src="data:image/png') for name, _ in shown[:-1])
    assert shown[-1][0] == "shared"
    each = policy.tables_of(torch.from_numpy(samples))[0].detach().mean(0)
    names = [operation.name for operation in policy.operations]
    for (_, found), shares in zip(shown[:-1], each, strict=True):
        expected = [100 * float(shares[names.index(head)]) for head in heads]
        assert found == pytest.approx(expected, abs=0.51)
    assert len({tuple(found) for _, found in shown}) == 9
    assert "The policy that all images share" in text
    assert heat_map(policy.spec()) == ""  # of a run that kept no images


def test_where_all_are_drawn_alike_there_is_none(tmp_path: Path) -> None:
    assert heat_map(Policy().spec()) == ""
    run = read_run(write_run(tmp_path / "run"))
    text = write_report([run], tmp_path / "report.html", figures=False)[0].read_text()
    assert "data-map" not in text
    assert "share prefers" not in text


def test_of_many_classes_those_are_shown_that_depart_the_most() -> None:
    policy = ClassPolicy(300, 1, operations=["Rotate", "Invert"])
    with torch.no_grad():
        policy.get_parameter("selection_deviations")[:, 150:, 0] = 1
    text = heat_map(policy.spec())
    shown = rows(text)
    assert len(shown) == 201
    assert {str(number) for number in range(150, 300)} < shown.keys()


def test_images_are_shown_under_draws_of_their_own_tables() -> None:
    policy = inverting_dark()
    samples = np.full((3, 3, 8, 12), 20, dtype=np.uint8)
    samples[1] = 230
    for labels in (None, np.array([0, 1, 1])):
        captions = [{tile.caption for tile in row.tiles[1:]} for row in gallery(policy.spec(), samples, labels).draws]
        assert captions == [{"Invert"}, {"unchanged"}, {"Invert"}]


def test_images_are_shown_under_draws_of_their_class() -> None:
    policy = inverting_class(0, 2)
    samples = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 12), dtype=np.uint8)
    shown = gallery(policy.spec(), samples, np.array([0, 1, 1, 0]))
    captions = [{tile.caption for tile in row.tiles[1:]} for row in shown.draws]
    assert captions == [{"Invert"}, {"unchanged"}, {"unchanged"}, {"Invert"}]
    for unknown in (None, np.array([0, 1, 2, 0]), np.zeros(0, int)):
        both = {tile.caption for row in gallery(policy.spec(), samples, unknown).draws for tile in row.tiles[1:]}
        assert both == {"Invert", "unchanged"}
