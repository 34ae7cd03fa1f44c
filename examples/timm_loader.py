"""Learn an augmentation policy on a folder of images, with timm's data sets, loaders and models.

python examples/timm_loader.py photos --model resnet18 --epochs 90, where photos/train and photos/validation hold one
folder for each class. The policy is saved as policy.json; docs/integrations.md shows how to use it in timm's training.
"""

import argparse
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.data import create_dataset, create_loader, resolve_data_config

import madao

parser = argparse.ArgumentParser()
parser.add_argument("root", type=Path)
parser.add_argument("--model", default="resnet18")
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--epochs", type=int, default=90)
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--every", type=int, default=30)
parser.add_argument("--workers", type=int, default=4)


def main(options: argparse.Namespace) -> None:
    """Train a model and learn a policy."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = str(options.root / "train")
    classes = sum(path.is_dir() for path in Path(folder).iterdir())
    model = timm.create_model(options.model, num_classes=classes).to(device)
    data = resolve_data_config({"input_size": (3, options.size, options.size)}, model=model)
    mean, std = (torch.tensor(data[name], device=device).reshape(3, 1, 1) for name in ("mean", "std"))

    def normalise(images: torch.Tensor) -> torch.Tensor:
        return (images - mean) / std

    def loader(name: str, **settings: Any) -> Any:
        # The prefetcher would normalise. Without it, mean 0 and deviation 1 leave images in [0, 1] for the policy.
        return create_loader(
            create_dataset("", str(options.root / name)),
            data["input_size"],
            options.batch,
            use_prefetcher=False,
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            interpolation=data["interpolation"],
            num_workers=options.workers,
            **settings,
        )

    train = loader("train", is_training=True, color_jitter=None)  # crop and flip
    outer_batches = loader("validation", is_training=True, no_aug=True)  # shuffled, and not augmented
    validation = loader("validation", crop_pct=data["crop_pct"])  # in order

    policy = madao.Policy().to(device)
    steps = options.epochs * len(train)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    outer = madao.PolicyOptimizer(
        policy, model, loss=F.cross_entropy, every=options.every, warmup=steps // 5, transform=normalise
    )
    for _ in range(options.epochs):
        model.train()
        for images, labels in train:
            images, labels = images.to(device), labels.to(device)
            loss = F.cross_entropy(model(normalise(policy(images))), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            outer.step((images, labels), outer_batches)
    model.eval()
    with torch.no_grad():
        wrong = [model(normalise(images.to(device))).argmax(1).cpu() != labels for images, labels in validation]
    share, best = policy.selection.mean(0).max(0)
    print(f"validation error: {torch.cat(wrong).float().mean().item():.1%}")
    policy.spec().save("policy.json")
    print("policy.json holds the learned policy")
    print(f"it selects {policy.operations[int(best)].name} most often, in {share.item():.0%} of draws")


if __name__ == "__main__":
    main(parser.parse_args())
