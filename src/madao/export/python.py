"""A policy as one Python file that only needs Pillow."""

import inspect
import json
import math
from collections.abc import Callable, Sequence
from textwrap import fill, indent
from typing import Any

import torch

from madao.export import image_conditional, pillow
from madao.export.single_image import ImageAugmenter, Step, strength
from madao.ops import Operation
from madao.ops.registry import built_in
from madao.policy import PolicySpec
from madao.policy.conditional.features import NAMES
from madao.policy.conditional.network import Network, Outputs

_HEAD = '''"""A data augmentation policy that madao learned. This file only needs Pillow.

Images are PIL images of mode L or RGB:

    from {module} import PolicyTransform

    transform = PolicyTransform()
    augmented = transform(image{label}

PolicyTransform(random.Random(0)) has reproducible draws. By default, draws come from the module random, which torch's
DataLoader seeds in each of its workers.
"""

{imports}

Picture = Image.Image

FILL = {fill}
"""Level outside a moved image: one for all channels, or one per channel."""
'''

_CLASS = '''
class PolicyTransform:
    """A transform that augments PIL images of mode L or RGB, each with its own draw.

    Args:
        generator: Source of random numbers; by default the module `random`.
    """

    def __init__(self, generator: random.Random | None = None) -> None:
        self.generator = generator

    def draw(self{by}) -> list[tuple]:
        """Draw for each stage an operation, whether it is applied, and its strength in its own unit."""
        source = self.generator or random
        steps = []
        for stage in {stages}:
            shares = [row[1] for row in stage]
            operation, _, application, one_way, other_way, {neutral} = source.choices(stage, shares)[0]
            applied = source.random() < application
            strength = one_way if source.random() < 0.5 else other_way
{weaker}            steps.append((operation, applied, strength))
        return steps

    def apply(self, image: Picture, steps: list[tuple]) -> Picture:
        """Augment an image with a draw."""
        if image.mode not in ("L", "RGB"):
            raise ValueError(f"the image must have mode L or RGB, got {image.mode}; use image.convert('RGB')")
        if len(FILL) > 1 and image.mode == "L":
            raise ValueError("the policy fills with a colour; use image.convert('RGB')")
        for operation, applied, strength in steps:
            if applied and operation in MOVING:
                image = operation(image, strength, FILL)
            elif applied:
                image = operation(image, strength)
        return image

    def __call__(self, image: Picture{parameter}) -> Picture:
        """Augment an image{of}."""
        return self.apply(image, self.draw({argument}))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({about})"


transform = PolicyTransform()
'''


def source(spec: PolicySpec, module: str = "policy_python") -> str:
    """Return the text of the file.

    Args:
        spec: The policy.
        module: Module name of the file, for the example in it.
    """
    policy = ImageAugmenter(spec)
    for operation in policy.drawn:
        if not built_in(operation):
            raise ValueError(
                f"{operation.name} is a registered operation, which a file without madao cannot contain; export to "
                "torchvision, albumentations, kornia or timm, or learn a policy without it"
            )
    names = [operation.name for operation in policy.drawn]
    moving = [pillow.GEOMETRIC[name].__name__ for name in names if name in pillow.GEOMETRIC]
    functions: list[Callable[..., Any]] = [pillow.FUNCTIONS[name] for name in names]
    shared: list[Callable[..., Any]] = [pillow.affine] if moving else []
    if spec.network is not None:
        shared += [image_conditional.features, image_conditional.law]
    text = "\n\n".join(inspect.getsource(part) for part in shared + functions)
    levels = torch.tensor(spec.fill, dtype=torch.float32).mul(255).to(torch.uint8).reshape(-1).tolist()
    tuples = f"({', '.join(map(str, levels))}{',' if len(levels) == 1 else ''})"
    words = _BY_CLASS if spec.classes else _FOR_ALL if spec.network is None else _BY_IMAGE
    words = words | (_JITTERED if spec.magnitude_jitter else _CONSTANT)
    head = _HEAD.format(module=module, imports=_imports(text), fill=tuples, label=words["{label}"])
    trailing = "," if len(moving) == 1 else ""
    law = _tables(spec) if spec.network is None else _network_tables(spec, spec.network)
    jitter = f"MAGNITUDE_JITTER = {spec.magnitude_jitter!r}  # strengths are weaker than in STAGES by up to this part\n"
    tables = f"{law}{jitter if spec.magnitude_jitter else ''}MOVING = ({', '.join(moving)}{trailing})\n"
    transform = _CLASS
    for place, word in words.items():
        transform = transform.replace(place, word)
    return f"{head}\n\n{text}\n\n{tables}\n{transform}"


_FOR_ALL = {
    "{label}": ")",
    "{by}": "",
    "{parameter}": "",
    "{argument}": "",
    "{stages}": "STAGES",
    "{of}": "",
    "{about}": "stages={len(STAGES)}",
}
_BY_CLASS = {
    "{label}": ", label)  # index of its class in CLASSES",
    "{by}": ", label: int",
    "{parameter}": ", label: int",
    "{argument}": "label",
    "{stages}": "STAGES[CLASSES[label]]",
    "{of}": " of the class CLASSES[label]",
    "{about}": "classes={len(CLASSES)}",
}
_BY_IMAGE = {
    **_FOR_ALL,
    "{by}": ", image: Picture",
    "{argument}": "image",
    "{stages}": "law(image, FEATURES, UNITS, STAGES)",
}


_CONSTANT = {"{neutral}": "_", "{weaker}": ""}
_JITTERED = {
    "{neutral}": "neutral",
    "{weaker}": " " * 12 + "strength = neutral + (1 - MAGNITUDE_JITTER * source.random()) * (strength - neutral)\n",
}


def _tables(spec: PolicySpec) -> str:
    what = (
        "    # operation, probability of being drawn, probability of being applied once drawn, two strengths that are\n"
        "    # equally likely, and the strength that changes nothing\n"
    )
    if not spec.classes:
        return f"STAGES = [\n{what}{_stages(spec)}]\n"
    names = {name: _text(name) for name in spec.classes}
    parts = [f"    {text}: [\n{indent(_stages(spec.of_class(name)), '    ')}    ],\n" for name, text in names.items()]
    listed = "".join(f"    {text},\n" for text in names.values())
    return f"CLASSES = [\n{listed}]\nSTAGES = {{\n{what}{''.join(parts)}}}\n"


def _text(name: str) -> str:
    """Return a literal, in double quotes unless characters must be escaped that no file can hold or nobody can see."""
    return json.dumps(name, ensure_ascii=False) if name.isprintable() else repr(name)


def _network_tables(spec: PolicySpec, network: Network) -> str:
    """Return the tables that `image_conditional.law` reads."""
    seen = "".join(
        f"    ({centre!r}, {scale!r}),  # {name}\n"
        for name, centre, scale in zip(NAMES, network.centre, network.scale, strict=True)
    )
    units = "".join(
        f"    (\n        {bias!r}, {offset!r},\n{_list(row, 8)},\n    ),\n"
        for bias, offset, row in zip(network.bias, network.offset, network.weights, strict=True)
    )
    stages = [
        "    [\n"
        + "".join(
            _network_row(operation, position, spec, number, outputs[position])
            for position, operation in enumerate(spec.operations)
            if spec.stages[number][position].selection > 0
        )
        + "    ],\n"
        for number, outputs in enumerate(network.stages)
    ]
    return (
        f"# fmt: off\nFEATURES = [\n    # mean and standard deviation\n{seen}]\n"
        f"UNITS = [\n    # bias, mean, and a weight for each feature\n{units}]\n"
        "STAGES = [\n    # operation, logits of selection, application and magnitude, strengths at no magnitude and\n"
        "    # at full magnitude one way and the other, and the amount that each unit adds to each logit\n"
        f"{''.join(stages)}]\n# fmt: on\n"
    )


def _network_row(operation: Operation, position: int, spec: PolicySpec, number: int, outputs: Outputs) -> str:
    entry, mu = spec.stages[number][position], spec.tensors(torch.float64)[2][number, position].item()
    more = torch.tensor([entry.application, mu], dtype=torch.float64).logit()
    logits = math.log(entry.selection), *more.clamp(-100, 100).tolist()  # sigmoid(100) rounds to 1
    strengths = _strengths(operation, (0.0, 1.0), (1.0, 1.0), (1.0, -1.0))
    none = (0.0,) * len(outputs.selection)
    added = "".join(f"{_list(values or none, 16)},\n" for values in outputs)
    name = pillow.FUNCTIONS[operation.name].__name__
    first = f"{name}, ({', '.join(f'{logit:.9g}' for logit in logits)}), {strengths}"
    return f"        (\n            {first},\n            (\n{added}            ),\n        ),\n"


def _list(values: Sequence[float], indent: int) -> str:
    """Return a list in lines of up to 120 characters."""
    place = " " * indent
    return fill(f"[{', '.join(map(repr, values))}]", 118, initial_indent=place, subsequent_indent=f"{place} ")


def _stages(spec: PolicySpec) -> str:
    return "".join(_stage(spec, number) for number in range(len(spec.stages)))


def _imports(text: str) -> str:
    used = [name for name in ("ImageChops", "ImageEnhance", "ImageOps", "ImageStat") if f"{name}." in text]
    standard = "import math\nimport random" if "math." in text else "import random"
    return f"{standard}\n\nfrom PIL import {', '.join(['Image', *used])}"


def _stage(spec: PolicySpec, number: int) -> str:
    rows = [
        _row(operation, position, spec, number)
        for position, operation in enumerate(spec.operations)
        if spec.stages[number][position].selection > 0
    ]
    return f"    [\n{''.join(rows)}    ],\n"


def _row(operation: Operation, position: int, spec: PolicySpec, number: int) -> str:
    entry = spec.stages[number][position]
    magnitude = spec.tensors()[2][number, position].item()
    name = pillow.FUNCTIONS[operation.name].__name__
    strengths = _strengths(operation, (magnitude, 1.0), (magnitude, -1.0), (0.0, 1.0))
    return f"        ({name}, {entry.selection!r}, {entry.application!r}, {strengths}),\n"


def _strengths(operation: Operation, *ways: tuple[float, float]) -> str:
    """Return the operation's parameter in real units at pairs of magnitude and sign.

    Nine digits hold a float32 exactly, so a threshold falls on the same side of a level as in madao.
    """
    return ", ".join(f"{strength(operation, Step(0, True, *way)).item():.9g}" for way in ways)
