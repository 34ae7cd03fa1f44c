"""The targets a policy can be exported to, by name."""

import dataclasses
from collections.abc import Callable

from madao.ops import PAPER
from madao.policy import PolicySpec
from madao.text import nearest


@dataclasses.dataclass(frozen=True)
class Target:
    """Where a policy can go.

    Attributes:
        file: What the file is called unless told otherwise.
        needs: What has to be installed where the file is used.
        write: The file's text from a policy and the name the file is imported by.
        usage: Two lines that use the file, `{module}` being its name.
        labels: Whether what is written can be given an image's label, which a policy with classes needs.
        sees_images: Whether it draws by what an image shows, which a policy that looks at images needs.
    """

    file: str
    needs: str
    write: Callable[[PolicySpec, str], str]
    usage: tuple[str, str]
    labels: bool = False
    sees_images: bool = True


def export(spec: PolicySpec, to: str, module: str | None = None) -> str:
    """The text of the file that holds a policy for another library.

    Args:
        spec: The policy.
        to: torchvision, albumentations, kornia, timm, python or json.
        module: What the file will be imported as, for the example in it.
    """
    if to not in TARGETS:
        raise ValueError(f"unknown target {nearest(to, TARGETS)}")
    if (spec.classes and not TARGETS[to].labels) or (spec.network is not None and not TARGETS[to].sees_images):
        from madao.export.single_image import without_classes

        without_classes(spec, to, TARGETS[to].sees_images)
    return TARGETS[to].write(spec, module or TARGETS[to].file.removesuffix(".py"))


_MODULE = '''"""A data augmentation policy found by madao, for {library}. Needs madao and {library}.

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
    "torchvision": """Before images are normalised, in place of RandAugment and the like:

    from {module} import transform

    augment = v2.Compose([v2.RandomHorizontalFlip(), transform, v2.ToImage(), v2.ToDtype(torch.float32, True)])""",
    "albumentations": """Before images are normalised; masks, boxes and key points move along:

    from {module} import transform

    augment = albumentations.Compose([albumentations.HorizontalFlip(), transform, albumentations.Normalize()])
    augmented = augment(image=image, mask=mask)""",
    "kornia": """On batches of floats in [0, 1], before they are normalised:

    from {module} import transform

    augment = AugmentationSequential(RandomHorizontalFlip(), transform, data_keys=["input", "mask"])
    images, masks = augment(images, masks)""",
    "timm": """In the place of timm's own RandAugment:

    from madao.export.timm import insert
    from {module} import transform

    augment = timm.data.create_transform(224, is_training=True, auto_augment=None, color_jitter=None)
    insert(transform, augment)""",
}


_LABELS = "The policy depends on the class: give the sample with its label, augment(image, label)."


def _library(library: str) -> Callable[[PolicySpec, str], str]:
    def write(spec: PolicySpec, module: str) -> str:
        foreign = [operation.name for operation in spec.operations if operation.name not in PAPER]
        note = f"\n# Register these of your own before: {', '.join(foreign)} (madao.ops.register).\n" if foreign else ""
        example = _EXAMPLES[library].format(module=module)
        if spec.classes:
            example += f"\n\n{_LABELS}"
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
"""Every target by name."""
