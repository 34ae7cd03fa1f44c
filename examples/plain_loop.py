"""Learn an augmentation policy in a plain PyTorch loop. Training digits are upright, the others are rotated.

About a minute on one CPU core: python examples/plain_loop.py
"""

from pathlib import Path

import torch
import torch.nn.functional as F

import madao
from madao.data import DATASETS, DatasetRequest
from madao.models import SmallCNN

EPOCHS, BATCH, WEIGHT_DECAY = 16, 64, 5e-4

digits = DATASETS["digits"](DatasetRequest(root=Path(), shift="rotate"))  # from scikit-learn
splits = (digits.train, digits.validation, digits.test)
train, validation, test = ((split.images / 255, split.labels) for split in splits)


def some(data: tuple[torch.Tensor, torch.Tensor], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images and labels."""
    chosen = torch.randperm(len(data[1]))[:count]
    return data[0][chosen], data[1][chosen]


def test_error(policy: madao.Policy | None) -> float:
    """Train a model, with a policy that learns or without a policy, and return its test error."""
    torch.manual_seed(0)
    model, steps = SmallCNN(classes=10), EPOCHS * (len(train[1]) // BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    if policy is not None:
        adam = torch.optim.Adam(policy.parameters(), lr=0.05, betas=(0.0, 0.99))
        outer = madao.PolicyOptimizer(
            policy, model, loss=F.cross_entropy, every=3, warmup=steps // 5, optimizer=adam, weight_decay=WEIGHT_DECAY
        )
    for _ in range(steps):
        images, labels = some(train, BATCH)
        loss = F.cross_entropy(model(images if policy is None else policy(images)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        # outer.step((images, labels), some(validation, 256)) works too. More training images mean less noise.
        if policy is not None and outer.tick():
            outer.update(some(train, 384), some(validation, 256))
    with torch.no_grad():
        return (model.eval()(test[0]).argmax(1) != test[1]).float().mean().item()


if __name__ == "__main__":
    policy = madao.Policy()
    print(f"test error without a policy: {test_error(None):.1%}")
    print(f"test error with a policy that learns: {test_error(policy):.1%}")
    share, best = policy.selection.mean(0).max(0)
    policy.spec().save("policy.json")
    print("policy.json holds the learned policy")
    print(f"it selects {policy.operations[int(best)].name} most often, in {share.item():.0%} of draws")
