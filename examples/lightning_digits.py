"""Learn an augmentation policy with Lightning. Training digits are upright, validation and test digits rotated.

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

digits = DATASETS["digits"](DatasetRequest(root=Path(), shift="rotate"))  # from scikit-learn
splits = (digits.train, digits.validation, digits.test)
train, validation, test = (TensorDataset(split.images / 255, split.labels) for split in splits)


class Classifier(pl.LightningModule):
    """An ordinary classifier, which does not know of the policy."""

    def __init__(self) -> None:
        super().__init__()
        self.model = SmallCNN(classes=10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images in [0, 1] to logits. A model that needs normalised images normalises them here."""
        logits: torch.Tensor = self.model(images)
        return logits

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Return the loss."""
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        """Log the error on validation images."""
        self.log("validation_error", (self(batch[0]).argmax(1) != batch[1]).float().mean())

    def test_step(self, batch: list[torch.Tensor], index: int) -> None:
        """Log the error on test images."""
        self.log("test_error", (self(batch[0]).argmax(1) != batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        """Return SGD with a cosine schedule."""
        sgd = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=WEIGHT_DECAY)
        steps = int(self.trainer.estimated_stepping_batches)
        return [sgd], [{"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(sgd, steps), "interval": "step"}]


def test_error(callbacks: list[pl.Callback]) -> float:
    """Train a model and return its test error."""
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
        train_images=384,  # the images of the last six batches, for less noise
    )
    print(f"test error without a policy: {test_error([]):.1%}")
    print(f"test error with a policy that learns: {test_error([learning]):.1%}")
    share, best = policy.selection.mean(0).max(0)
    policy.spec().save("policy.json")
    print("policy.json holds the learned policy")
    print(f"it selects {policy.operations[int(best)].name} most often, in {share.item():.0%} of draws")
