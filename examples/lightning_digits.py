"""Learn an augmentation policy in a Lightning training: upright digits to train on, rotated ones to do well on.

About a minute on one CPU core: python examples/lightning_digits.py
"""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import madao
from madao.data import DATASETS, DatasetRequest
from madao.integrations.lightning import PolicyCallback
from madao.models import SmallCNN

EPOCHS, BATCH, WEIGHT_DECAY = 16, 64, 5e-4

digits = DATASETS["digits"](DatasetRequest(root=Path(), shift="rotate"))  # comes along with scikit-learn
splits = (digits.train, digits.validation, digits.test)
train, validation, test = (TensorDataset(split.images / 255, split.labels) for split in splits)


class Classifier(pl.LightningModule):
    """As any other: nothing in it knows of a policy."""

    def __init__(self) -> None:
        super().__init__()
        self.model = SmallCNN(classes=10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """From images in [0, 1] to logits; normalising would stand here."""
        logits: torch.Tensor = self.model(images)
        return logits

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """The loss."""
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        """The error on validation images."""
        self.log("validation_error", (self(batch[0]).argmax(1) != batch[1]).float().mean())

    def test_step(self, batch: list[torch.Tensor], index: int) -> None:
        """The error on test images."""
        self.log("test_error", (self(batch[0]).argmax(1) != batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        """SGD on a cosine."""
        sgd = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=WEIGHT_DECAY)
        steps = int(self.trainer.estimated_stepping_batches)
        return [sgd], [{"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(sgd, steps), "interval": "step"}]


def test_error(callbacks: list[pl.Callback]) -> float:
    """Train a model and test it."""
    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        callbacks=callbacks,
        check_val_every_n_epoch=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    trainer.fit(model, DataLoader(train, BATCH, shuffle=True, drop_last=True), DataLoader(validation, 256))
    return trainer.test(model, DataLoader(test, 256), verbose=False)[0]["test_error"]


if __name__ == "__main__":
    policy = madao.Policy()
    learning = PolicyCallback(
        policy,
        every=3,
        warmup=EPOCHS * (len(train) // BATCH) // 5,
        optimizer=torch.optim.Adam(policy.parameters(), lr=0.05, betas=(0.0, 0.99)),
        weight_decay=WEIGHT_DECAY,
        train_images=384,  # of the last steps: a batch of 64 tells little
    )
    print(f"test error without a policy: {test_error([]):.1%}")
    print(f"test error with a policy that learns: {test_error([learning]):.1%}")
    share, best = policy.selection.mean(0).max(0)
    print(f"it selects {policy.operations[int(best)].name} the most, in {share.item():.0%} of draws")
    policy.spec().save("policy.json")
