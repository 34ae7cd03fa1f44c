"""A training by the trainer of another library, which one or several processes share in tests.

    torchrun … tests/helpers/integration_processes.py lightning|transformers FOLDER [CHECKPOINT]

A single process trains on batches of the size of all processes' batches together, in the same order.
Each process saves its weights and its policy.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import madao

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
TOGETHER, SHARES = 6, 2  # images in a step, and the largest number of processes


def policy() -> madao.Policy:
    return madao.Policy(seed=3).double()


def settings(policy: madao.Policy) -> dict[str, Any]:
    return {"every": 2, "optimizer": torch.optim.Adam(policy.parameters(), lr=0.1), "seed": 4}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, 8, 8, generator=generator, dtype=torch.float64), torch.arange(count) % 3


def by_lightning(folder: Path, resumed: str | None) -> dict[str, Tensor]:
    import lightning.pytorch as pl
    import torch.nn.functional as F
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    from madao.integrations.lightning import PolicyCallback

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, images: Tensor) -> Tensor:
            outputs: Tensor = self.net(images)
            return outputs

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    # The sampler deals the images out in turn. A single process gets them in the order of the processes.
    order = torch.arange(24).reshape(-1, TOGETHER // SHARES, SHARES).transpose(1, 2).reshape(-1)
    data, labels = images(24, 0)
    train = TensorDataset(data, labels) if WORLD > 1 else TensorDataset(data[order], labels[order])
    model, learned = Classifier(), policy()
    callback = PolicyCallback(learned, validation_images=8, **settings(learned))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=WORLD,
        strategy="ddp" if WORLD > 1 else "auto",
        use_distributed_sampler=False,  # which would shuffle
        max_epochs=1 if resumed == "first" else 3,
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
    )

    def loader(data: TensorDataset, size: int) -> DataLoader[Any]:
        return DataLoader(
            data,
            size,
            sampler=DistributedSampler(data, WORLD, int(os.environ["RANK"]), shuffle=False) if WORLD > 1 else None,
        )

    loaders = loader(train, TOGETHER // WORLD), loader(TensorDataset(*images(13, 1)), 4)
    trainer.fit(model, *loaders, ckpt_path=None if resumed in (None, "first") else resumed)
    trainer.save_checkpoint(folder / "last.ckpt")
    assert callback.outer is not None
    assert callback.outer.updates == trainer.global_step // 2
    return {**model.net.state_dict(), **dict(learned.named_parameters())}


def by_transformers(folder: Path, resumed: str | None) -> dict[str, Tensor]:
    from torch.utils.data import Dataset
    from transformers import TrainingArguments
    from transformers.modeling_outputs import ImageClassifierOutput

    from madao.integrations.transformers import PolicyTrainer

    class Images(Dataset[dict[str, Tensor]]):
        def __init__(self, count: int, seed: int) -> None:
            self.images, self.labels = images(count, seed)

        def __len__(self) -> int:
            return len(self.images)

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {"pixel_values": self.images[index], "labels": self.labels[index]}

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(
            self, pixel_values: Tensor, labels: Tensor | None = None, return_dict: bool = True
        ) -> ImageClassifierOutput:
            logits = self.net(pixel_values)
            loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
            return ImageClassifierOutput(loss=loss, logits=logits)  # type: ignore[arg-type]

    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=TOGETHER // WORLD,
        per_device_eval_batch_size=4,
        num_train_epochs=3,
        save_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        learning_rate=0.01,
        lr_scheduler_type="constant",
    )
    model, learned = Classifier(), policy()
    trainer = PolicyTrainer(
        model,
        arguments,
        train_dataset=Images(24, 0),
        eval_dataset=Images(13, 1),
        policy=learned,
        validation_images=8,
        settings=settings(learned),
    )
    trainer.train(resume_from_checkpoint=resumed)
    assert trainer.outer is not None
    assert trainer.outer.updates == trainer.state.global_step // 2
    return {**model.net.state_dict(), **dict(learned.named_parameters())}


if __name__ == "__main__":
    library, folder, *rest = sys.argv[1:]
    run = {"lightning": by_lightning, "transformers": by_transformers}[library]
    found = run(Path(folder), rest[0] if rest else None)
    if dist.is_initialized():
        dist.destroy_process_group()  # its threads must not outlive the interpreter
    torch.save(
        {name: tensor.detach() for name, tensor in found.items()}, Path(folder) / f"{os.environ.get('RANK', 0)}.pt"
    )
