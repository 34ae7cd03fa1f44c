"""Files of a run besides its tables: a record of its images, and its policy over time."""

import io

import numpy as np
from torch import Tensor

from madao.data import Images
from madao.policy import AugmentationPolicy, BaseAugmentation, ClassPolicy, FrozenPolicy, Policy
from madao.training.run.directory import RunDirectory
from madao.training.splits import Splits

SAMPLES = "samples.npz"
_SAMPLE_COUNT = 8


def record_images(directory: RunDirectory, splits: Splits, base_augmentation: BaseAugmentation) -> None:
    """Write classes, statistics, sizes and validation indices to split.json; a few training images to samples.npz."""
    indices = splits.validation_indices
    split = {
        "classes": list(splits.classes),
        "mean": splits.mean,
        "std": splits.std,
        "size": splits.size,
        "stored_size": min(splits.train.shape[1:]),
        "validation": None if indices is None else indices.tolist(),
        "skipped": len(splits.skipped),
    }
    directory.write_json("split.json", split)
    directory.write(SAMPLES, sample_archive(splits.train, base_augmentation))


def sample_archive(images: Images, base_augmentation: BaseAugmentation) -> bytes:
    """Return an .npz file: `images`, uint8 `[n, C, H, W]` as cropped for the model, and `labels`."""
    indices = choose_samples(images.labels)
    pixels, read = images.load(indices)
    shown = base_augmentation.centre(pixels).cpu().numpy()
    file = io.BytesIO()
    np.savez_compressed(file, images=shown, labels=images.labels[[indices[i] for i in read]].numpy())
    return file.getvalue()


def choose_samples(labels: Tensor, count: int = _SAMPLE_COUNT) -> list[int]:
    """Return indices of `count` images: the first image of each class, then the second of each, and so on."""
    seen: dict[int, int] = {}
    ranks = []
    for index, label in enumerate(labels.tolist()):
        seen[label] = seen.get(label, -1) + 1
        ranks.append((seen[label], label, index))
    return [index for _, _, index in sorted(ranks)[:count]]


def record_policy(directory: RunDirectory, policy: AugmentationPolicy | None, epoch: int, step: int) -> None:
    """Write the present policy to policy.json; add the probabilities of a learned one to trajectory.jsonl."""
    if isinstance(policy, Policy | FrozenPolicy):
        directory.write("policy.json", policy.spec().dumps())
    if isinstance(policy, Policy):
        if step == 0:
            names = [operation.name for operation in policy.operations]
            directory.append_json("trajectory.jsonl", {"epoch": 0, "step": 0, "operations": names})
        learned = {name: getattr(policy, name).tolist() for name in ("selection", "application", "magnitude")}
        if isinstance(policy, ClassPolicy):
            learned["class_selection"] = policy.class_selection.detach().mean(0).tolist()
        directory.append_json("trajectory.jsonl", {"epoch": epoch, "step": step, **learned})
