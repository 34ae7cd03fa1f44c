"""The targets of an export, by name."""

import dataclasses
from collections.abc import Callable

from madao.ops import PAPER
from madao.policy import PolicySpec
from madao.text import nearest


@dataclasses.dataclass(frozen=True)
class Target:
    """A library or format that a policy can be exported to."""

    file: str  # its default name
    needs: str  # packages that the file imports
    write: Callable[[PolicySpec, str], str]  # returns the text from a policy and the file's module name
    usage: tuple[str, str]  # two lines that use the file, with `{module}` for its name
    labels: bool = False  # whether its transforms take labels, which policies with classes need
    sees_images: bool = True  # whether its transforms see the image before they draw


def export(spec: PolicySpec, to: str, module: str | None = None) -> str:
    """Return the text of a file with the policy for torchvision, albumentations, kornia, timm, python or json.

    `module` is the module name of the file, for the example in it.

    Example:
        >>> text = export(policy.spec(), "torchvision")
    """
    if to not in TARGETS:
        raise ValueError(f"unknown target {nearest(to, TARGETS)}")
    if (spec.classes and not TARGETS[to].labels) or (spec.network is not None and not TARGETS[to].sees_images):
        from madao.export.single_image import without_classes

        without_classes(spec, to, TARGETS[to].sees_images)
    return TARGETS[to].write(spec, module or TARGETS[to].file.removesuffix(".py"))


_MODULE = '''"""A data augmentation policy that madao learned, for {library}. Needs madao and {library}.

{example}
"""

from madao.export.{library} import PolicyTransform
from madao.policy import PolicySpec
{note}
transform = PolicyTransform(
    PolicySpec.loads(r"""
{text}""")
)
'''

_EXAMPLES = {
    "torchvision": """Use it before images are normalised, in place of RandAugment or another policy:

    from {module} import transform

    augment = v2.Compose([v2.RandomHorizontalFlip(), transform, v2.ToImage(), v2.ToDtype(torch.float32, True)])""",
    "albumentations": """Use it before images are normalised. Masks, boxes and key points move along:

    from {module} import transform

    augment = albumentations.Compose([albumentations.HorizontalFlip(), transform, albumentations.Normalize()])
    augmented = augment(image=image, mask=mask)""",
    "kornia": """Use it on batches of floats in [0, 1], before they are normalised:

    from {module} import transform

    augment = AugmentationSequential(RandomHorizontalFlip(), transform, data_keys=["input", "mask"])
    images, masks = augment(images, masks)""",
    "timm": """Use it in place of timm's RandAugment:

    from madao.export.timm import insert
    from {module} import transform

    augment = timm.data.create_transform(224, is_training=True, auto_augment=None, color_jitter=None)
    insert(transform, augment)""",
}


def _library(library: str) -> Callable[[PolicySpec, str], str]:
    def write(spec: PolicySpec, module: str) -> str:
        foreign = [operation.name for operation in spec.operations if operation.name not in PAPER]
        note = f"\n# Register these operations first: {', '.join(foreign)} (madao.ops.register).\n" if foreign else ""
        example = _EXAMPLES[library].format(module=module)
        if spec.classes:
            example += "\n\nThe policy depends on the class: give the label with the image, augment(image, label)."
        return _MODULE.format(library=library, example=example, note=note, text=spec.dumps())

    return write


def _python(spec: PolicySpec, module: str) -> str:
    from madao.export.python import source

    return source(spec, module)


_IMPORT = "from {module} import transform"

TARGETS: dict[str, Target] = {
    "torchvision": Target(
        "policy_torchvision.py",
        "madao, torchvision",
        _library("torchvision"),
        (_IMPORT, "augmented = transform(image)  # PIL, tensor or tv_tensors; masks and boxes move along"),
        labels=True,
    ),
    "albumentations": Target(
        "policy_albumentations.py",
        "madao, albumentations",
        _library("albumentations"),
        (_IMPORT, "augmented = transform(image=array)['image']  # or inside albumentations.Compose"),
    ),
    "kornia": Target(
        "policy_kornia.py",
        "madao, kornia",
        _library("kornia"),
        (_IMPORT, "augmented = transform(images)  # floats [B, C, H, W]; or inside AugmentationSequential"),
        sees_images=False,
    ),
    "timm": Target(
        "policy_timm.py",
        "madao, timm",
        _library("timm"),
        (_IMPORT, "augmented = transform(image)  # PIL; madao.export.timm.insert puts it into create_transform's"),
    ),
    "python": Target(
        "policy_python.py",
        "Pillow",
        _python,
        (_IMPORT, "augmented = transform(image)  # PIL"),
        labels=True,
    ),
    "json": Target(
        "policy_export.json",
        "madao",
        lambda spec, module: spec.dumps(),
        ("import madao", "policy = madao.load_policy('{file}')  # policy(images) augments a batch"),
        labels=True,
    ),
}
"""All targets by name."""
