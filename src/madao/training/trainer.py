"""The one loop that serves every method: weights on augmented training images, the policy on validation images."""

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from madao.config.train_config import TrainConfig
from madao.data import Batches
from madao.device.allocator import enable_expandable_segments
from madao.device.precision import set_precision
from madao.distributed.group import ProcessGroup
from madao.distributed.launch import convert_sync_batchnorm, launch, rank_zero_first
from madao.distributed.sampling import shard_of
from madao.errors import DataError, SharedError, UserError
from madao.files import load_torch
from madao.outer.cuda_graph import GraphPool
from madao.policy import ImagePolicy, Policy
from madao.tasks import EvalResult
from madao.training.build import (
    build_base_augmentation,
    build_model,
    build_optimizer,
    build_policy,
    build_task,
    model_name,
    pick_device,
    standardise,
)
from madao.training.ema import WeightAverage
from madao.training.evaluate import evaluate, to_compare_with
from madao.training.inner_step import GraphedStep, InnerStep
from madao.training.interrupt import Interrupted, StopRequest, how_to_resume, stop_requests
from madao.training.monitor.console import Console
from madao.training.monitor.loggers import TensorBoardLogger
from madao.training.monitor.metrics import EpochMetrics
from madao.training.monitor.profiler import Profiler
from madao.training.monitor.waiting import loader_advice, timing_row
from madao.training.out_of_memory import less_memory, out_of_memory
from madao.training.outer_loop import OuterLoop
from madao.training.run.artifacts import record_images, record_policy, run_directory
from madao.training.run.directory import RunDirectory
from madao.training.run.result import FILE, Result, preferences
from madao.training.run.state import restore, resume_note, snapshot
from madao.training.schedule import learning_rate
from madao.training.splits import Splits, load_splits, on_device

_WORTH_COMPILING = 10_000
"""Steps of a run from which on compiling takes less time than it saves, at 4 ms a step."""

_LOOK_EVERY = 20
"""Steps between two looks at the loss, each of which makes the host wait for the device."""


class Trainer:
    """Trains a model and learns its policy.

    Args:
        config: What to run.
        splits: The images, where they are loaded already. By default those the configuration names.
        title: Before each line it shows. By default the name of the run directory.
    """

    def __init__(self, config: TrainConfig, splits: Splits | None = None, title: str | None = None) -> None:
        self.config = config
        device = pick_device(config.device)
        self.autocast = set_precision(config.precision, device)
        torch.backends.cudnn.benchmark = config.speed.benchmark
        enable_expandable_segments(device)
        self.fabric = launch(device, config.devices, config.num_nodes, self.autocast is not None)
        self.ranks, self.device = ProcessGroup.current(), self.fabric.device
        if config.out is not None:  # before the images are read, which may take a while
            rank_zero_first(self.ranks, lambda: RunDirectory(Path(str(config.out))).check(config))
        if splits is None:
            splits = rank_zero_first(self.ranks, lambda: load_splits(config.data), again=True)
        self.splits, self._notes = on_device(splits, config.data, self.device)
        if self.splits.validation is None and config.eval_checkpoint == "best":
            raise SharedError(
                "--eval_checkpoint best chooses by validation images, and --data.val_fraction 0 sets none aside"
            )
        self.directory = RunDirectory(run_directory(config, self.splits), self.ranks.first)
        torch.manual_seed(config.seed)
        self.network = build_model(config.model, self.splits, config.task)
        torch.manual_seed(config.seed + 7919 * self.ranks.rank)  # dropout has masks of its own
        if config.sync_batch_norm:
            twice = config.augment.method == "madao" and config.outer.model_mode == "train"
            self.network = convert_sync_batchnorm(self.network, self.device, twice)
        if self.device.type == "cuda":
            # What convolutions in half precision want: otherwise every one of them turns its inputs over and back.
            self.network.to(memory_format=torch.channels_last)
        self.optimizer = build_optimizer(config.optimizer, self.network, self.device)
        self._rate_on_device = torch.zeros((), device=self.device) if self.device.type == "cuda" else None  # for graphs
        self.meter = Profiler(self.device, reads=not self.splits.in_memory)
        self.model, stepper = self.fabric.setup(self.network, self.optimizer)
        self.policy = build_policy(config.augment, self.splits.classes, config.seed)
        if self.policy is not None:
            self.policy.to(self.device)
            self.policy.fused = config.speed.kernels
        self.standard = build_base_augmentation(config.augment, self.splits, config.seed)
        if isinstance(self.policy, ImagePolicy):
            standardise(self.policy, self.splits, self.standard)
        self.average = WeightAverage(self.network, config.ema) if config.ema else None
        self.task = build_task(config, self.splits, self.network, self.standard, self.ranks, self.autocast)
        if self.policy is not None and self.policy.classes and self.task.targets_follow_policy:
            raise UserError(f"a policy for each class needs a class for every image, which {self.task.name} has not")
        if self.policy is not None and self.policy.uses_image and self.task.views > 1:
            raise UserError(f"a policy that looks at images draws for one view of each, and {self.task.name} has two")
        self._batches = functools.partial(
            Batches,
            device=self.device,
            workers=config.data.processes,
            rank=self.ranks.rank,
            world=self.ranks.world,
        )
        self.train_batches = self._batches(self.splits.train, config.batch_size, seed=config.seed)
        if self.train_batches.batch_size < config.accumulate * self.ranks.world:
            raise SharedError(
                f"a batch of {self.train_batches.batch_size} images cannot be shared by {self.ranks.world} processes, "
                f"each in {config.accumulate} parts; raise --batch_size, or lower --devices or --accumulate"
            )
        self.learning = (
            OuterLoop(
                config,
                self.policy,
                self.network,
                self.task,
                self.standard,
                self.splits,
                self.train_batches,
                self.autocast,
                self.meter.awaited,
            )
            if isinstance(self.policy, Policy)
            else None
        )
        self.inner = self._inner_step(stepper)
        self.epoch = self.step = 0
        self.totals = EpochMetrics(self.device, self.ranks)
        self.best: tuple[float, int] | None = None
        self.validation_error: float | None = None
        self.title = title or self.directory.path.name

    def _inner_step(self, optimizer: Any) -> InnerStep | GraphedStep:
        """What trains on a batch, as fast as the settings allow."""
        config = self.config
        on_gpu = self.device.type == "cuda"
        chosen = config.speed.compile
        compile = on_gpu and (self.steps_per_epoch * config.epochs >= _WORTH_COMPILING if chosen is None else chosen)
        model: Any = torch.compile(self.model, dynamic=False) if compile else self.model
        if compile:
            self.task.compile()
        step = InnerStep(
            model,
            self.task,
            self.fabric.backward,
            optimizer,
            self.standard,
            self.policy,
            config.accumulate,
            config.optimizer.clip,
            shard_of(self.train_batches.batch_size, self.ranks) if self.ranks.world > 1 else None,
            self.ranks.world,
        )
        if not on_gpu or not config.speed.graph or self.ranks.world > 1:
            return step

        def say(line: str) -> None:
            self.console.say(f"{self.title}: {line}")

        memory = GraphPool(self.device)  # inner and outer steps take turns
        if self.learning is not None:
            self.learning.outer.record(say, compile, memory)
        random = [self.standard, *([] if self.policy is None else [self.policy])]
        return GraphedStep(step, random, say, memory)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of the optimizer in an epoch."""
        return len(self.train_batches)

    @property
    def evaluated(self) -> nn.Module:
        """What is measured and kept: the network, or the average of its weights."""
        return self.network if self.average is None else self.average.module

    def fit(self) -> Result:
        """Train to the end, or go on from the last checkpoint; then look at the test set, once.

        Raises:
            UserError: Something the user can mend.
            Interrupted: By SIGINT or SIGTERM, after a checkpoint.
        """
        try:
            self._begin()
            finished = self._finished_result()
            for note in [*self._notes, *resume_note(self, finished is not None)] if self.ranks.first else ():
                print(f"{self.title}: {note}", flush=True)
            return self._run() if finished is None else finished
        finally:
            self.directory.release()

    def _run(self) -> Result:
        config = self.config
        total = config.epochs * self.steps_per_epoch
        self.console = Console(self.title, total, self.ranks.first, error=self.task.metric_name)
        speaks = config.tensorboard and self.ranks.first
        self.events = TensorBoardLogger(self.directory.path / "tensorboard", self.step) if speaks else None
        self._saved_at = time.monotonic()
        try:
            with stop_requests("this step and a checkpoint") as request:
                self.console.start(self.step)
                while self.epoch < config.epochs:
                    self._train_epoch(request)
                    self._end_epoch()
                    self._stop_if(request)
            return self._finish()
        except DataError as error:
            raise UserError(str(error)) from None
        except RuntimeError as error:
            if out_of_memory(error):
                outer = self.learning.largest_pass if self.learning is not None and self.learning.at_work else None
                remedy = less_memory(config.batch_size, config.accumulate, outer)
                raise UserError(f"out of memory at step {self.step + 1}; {remedy}") from None
            raise
        finally:
            self.console.stop()
            if self.events is not None:
                self.events.close()

    def _begin(self) -> None:
        """Claim the directory, and take up what it holds."""
        rank_zero_first(self.ranks, lambda: self.directory.claim(self.config))
        state = rank_zero_first(self.ranks, self.directory.checkpoints.load)
        if state is not None:
            restore(self, state)
        self.directory.rewind(-1 if state is None else self.epoch)
        if state is None:
            model = model_name(self.config.model, self.splits, self.config.task)
            self.directory.write_environment(self.device, model)
            record_images(self.directory, self.splits, self.standard)
            record_policy(self.directory, self.policy, self.epoch, self.step)

    def _train_epoch(self, request: StopRequest) -> None:
        self.model.train()
        self.meter.start()
        start = self.step - self.epoch * self.steps_per_epoch
        for images, targets in self.meter.awaited(self.train_batches.epoch(self.epoch, start)):
            self._train_step(images, targets)
            self.step += 1
            if self.step % _LOOK_EVERY == 0:
                self._look()
            if self.ranks.world == 1 or self.step % _LOOK_EVERY == 0:
                self._stop_if(request)
        self._look()

    def _stop_if(self, request: StopRequest) -> None:
        """Save and stop if this process or another has been asked to."""
        number = self._most(request.number or 0)
        if number:
            self._look()
            self._save()
            where = f"stopped at step {self.step}, a checkpoint is written"
            raise Interrupted(number, f"{where}; {how_to_resume(self.directory.path)}")

    def _most(self, number: int) -> int:
        """The largest of all processes; alone nothing waits for the device."""
        return (
            number
            if self.ranks.world == 1
            else int(self.ranks.all_reduce_max(torch.tensor(number, device=self.device)))
        )

    def _train_step(self, images: Tensor, targets: Tensor) -> None:
        progress = self.step / self.steps_per_epoch
        rate = learning_rate(self.config.optimizer, progress, self.config.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = rate if self._rate_on_device is None else self._rate_on_device.fill_(rate)
        augment = self.learning is None or self.learning.applies(self.step)
        trained = self.inner(images, targets, augment)
        count = len(images) if self.ranks.world == 1 else self.train_batches.batch_size
        self.totals.add(trained.loss, trained.num_errors, count, self.step + 1)
        if self.average is not None:
            self.average.update(self.network)
        if self.learning is not None:
            with self.meter.outer(self.learning.outer.due()):
                self.learning.step(progress / self.config.epochs, trained)

    def _look(self) -> None:
        """Check the loss, show progress, and save if it is time."""
        bad = self.totals.first_bad_step()
        if bad is not None:
            last = rank_zero_first(self.ranks, self.directory.checkpoints.load)
            kept = "there is no checkpoint yet" if last is None else f"the checkpoint of step {last['step']} is kept"
            raise SharedError(
                f"the loss is not finite at step {bad} (epoch {(bad - 1) // self.steps_per_epoch + 1}), {kept}; start "
                "anew in another --out with a lower --optimizer.lr, or with --optimizer.clip 1 or --optimizer.warmup 1"
            )
        now = time.monotonic()
        rate = self.meter.rate(self.totals.images)
        self.console.step(self.step, self.totals.loss, self.totals.error, rate, self.policy)
        late = now - self._saved_at > 60 * self.config.checkpoint_minutes
        if self._most(int(late)):
            self._save()

    def _end_epoch(self) -> None:
        self.epoch += 1
        seconds, rate = self.meter.seconds, self.meter.rate(self.totals.images)
        timing = timing_row(seconds, rate, self.meter.read())
        due = self.epoch % self.config.evaluate_every == 0 or self.epoch == self.config.epochs
        score = self._score(self.splits.validation) if due and self.splits.validation is not None else None
        self.validation_error = self.validation_error if score is None else score.error
        learning = self.learning
        row = {
            "epoch": self.epoch,
            "step": self.step,
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            "train_loss": self.totals.loss,
            "train_error": self.totals.error,
            "validation_loss": None if score is None else score.loss,
            "validation_error": None if score is None else score.error,
            "outer_updates": 0 if learning is None else learning.outer.updates,
            "outer_skipped": 0 if learning is None else learning.outer.skipped,
        }
        self.directory.append_rows("metrics.csv", [row])
        self.directory.append_rows("timing.csv", [{"epoch": self.epoch, "step": self.step, **timing}])
        if learning is not None and learning.record:
            self.directory.append_rows("outer.csv", [{"epoch": self.epoch, **step} for step in learning.record])
            learning.record.clear()
        record_policy(self.directory, self.policy, self.epoch, self.step)
        if self.events is not None:
            self.events.write(self.step, {**row, **timing}, self.policy, None if learning is None else learning.last)
        better = score is not None and (self.best is None or score.error < self.best[0])
        if score is not None and better:
            self.best = (score.error, self.epoch)
            self.directory.keep_best(self._weights(score.error))
        self.totals.clear()
        self.meter.clear()
        if better or self.epoch % self.config.checkpoint_every == 0 or self.epoch == self.config.epochs:
            self._save()
        self.console.epoch(row, self.config.epochs, rate, self.policy, timing["model_images_per_second"], due)
        self.console.advise(loader_advice(timing, self.config.data, self.splits, self.device.type == "cuda"))

    def _score(self, images: Any) -> EvalResult:
        self.ranks.broadcast_(self.evaluated.buffers())
        batches = functools.partial(self._batches, batch_size=500, shuffle=False, drop_last=False)
        measure, data = self.task.measure(), batches(images).epoch(0)

        def known() -> Any:
            return batches(to_compare_with(self.splits.train)).epoch(0)

        return evaluate(self.evaluated, data, self.standard, self.autocast, self.ranks, measure, known)

    def _weights(self, validation_error: float) -> dict[str, Any]:
        """What the best checkpoint holds: enough to evaluate."""
        return {
            "model": self.evaluated.state_dict(),
            "classes": list(self.splits.classes),
            "epoch": self.epoch,
            "validation_error": validation_error,
        }

    def _finish(self) -> Result:
        """Look at the test set, once, and write down how it ended."""
        epoch, error = self.epoch, self.validation_error
        if self.config.eval_checkpoint == "best" and self.best is not None:
            best = rank_zero_first(self.ranks, lambda: load_torch(self.directory.best))
            self.evaluated.load_state_dict(best["model"])
            epoch, error = best["epoch"], best["validation_error"]
        test = None if self.splits.test is None else self._score(self.splits.test)
        shared, classes = preferences(self.policy)
        result = Result(
            None if test is None else test.error,
            error,
            epoch,
            str(self.directory.path),
            shared,
            None if test is None else test.loss,
            {} if test is None else test.metrics,
            self.task.metric_name,
            classes,
        )
        self.directory.write_json(FILE, dataclasses.asdict(result))
        self.directory.checkpoints.keep_last_only()
        return result

    def _finished_result(self) -> Result | None:
        """The result of a run that has ended already."""
        over = self.epoch >= self.config.epochs
        return rank_zero_first(self.ranks, lambda: Result.load(self.directory.path)) if over else None

    def _save(self) -> None:
        if not all(parameter.isfinite().all() for parameter in self.network.parameters()):
            raise SharedError(
                f"the weights are not finite after step {self.step}, the checkpoint before is kept; start anew in "
                "another --out with a lower --optimizer.lr, or with --optimizer.clip 1"
            )
        if self.learning is not None:
            self.learning.check_alike()
        self.directory.checkpoints.save(snapshot(self))
        self.ranks.broadcast_object(None)  # no process ends before it is written
        self._saved_at = time.monotonic()
