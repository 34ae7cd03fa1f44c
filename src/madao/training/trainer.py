"""The training loop of every method: weights on augmented training images, the policy on validation images."""

import dataclasses
import time

import torch
from torch import Tensor

from madao.distributed.launch import rank_zero_first
from madao.errors import DataError, SharedError, UserError
from madao.models.fine_tuning import freeze_norms
from madao.training.evaluate import evaluate_run
from madao.training.interrupt import Interrupted, StopRequest, stop_requests
from madao.training.monitor.advice import divergence_advice, loader_advice, memory_advice
from madao.training.monitor.loggers.run_logger import RunLogger
from madao.training.monitor.profiler import timing_row
from madao.training.outer_check import check_outer_step
from madao.training.run.artifacts import record_images, record_policy
from madao.training.run.contents import fitting
from madao.training.run.result import FILE, Result, preferences
from madao.training.run.skipped import SkippedRecord
from madao.training.run.state import Run
from madao.training.schedule import learning_rate

LOOK_EVERY = 20
"""Steps between two checks of the loss. Each makes the host wait for the device."""


class Trainer:
    """The training loop of a run.

    Args:
        run: The parts of the run, from `build_run`.

    Example:
        >>> run = build_run(TrainConfig(epochs=5, out="runs/digits"))  # doctest: +SKIP
        >>> Trainer(run).fit().test_error  # doctest: +SKIP
        0.012
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.logger = RunLogger(run.config.logger)
        self.skipped = SkippedRecord(run.directory, run.splits, run.ranks, run.device, run.console.say)
        # CUDA graphs read the learning rates from tensors, one for each group of parameters.
        on_gpu = run.device.type == "cuda"
        self._rates = [torch.zeros((), device=run.device) if on_gpu else None for _ in run.optimizer.param_groups]
        self._saved_at = 0.0

    def fit(self) -> Result:
        """Train to the end, from the last checkpoint if there is one. Then evaluate on the test set, once.

        Raises:
            UserError: Something that the user can fix.
            Interrupted: After SIGINT or SIGTERM and a checkpoint.
        """
        run = self.run
        complete = False
        try:
            self.setup()
            result = self._finished() or self._train()
            complete = True
            return result
        except DataError as error:
            raise UserError(str(error)) from None
        except RuntimeError as error:
            if (remedy := memory_advice(error, run)) is not None:
                raise UserError(f"out of memory at step {run.step + 1}; {remedy}") from None
            raise
        finally:
            run.console.stop()
            self.logger.close(complete)
            run.directory.release()

    def setup(self) -> None:
        """Try an outer step, claim the run directory, and restore the last checkpoint, if there is one."""
        run = self.run
        if run.outer_loop is not None:
            parts = run.config.task.bn_splits
            run.notes.extend(check_outer_step(run.outer_loop, run.splits.train, run.device, parts))
        rank_zero_first(run.ranks, lambda: run.directory.claim(run.config))
        state = rank_zero_first(run.ranks, run.directory.checkpoints.load)
        if state is not None:
            run.load_state_dict(state)
        run.directory.rewind(-1 if state is None else run.epoch)
        if state is None:
            run.directory.write_environment(run.device, run.model_name)
            record_images(run.directory, run.splits, run.base_augmentation)
            record_policy(run.directory, run.policy, run.epoch, run.step)
        for note in run.notes:
            run.console.say(note)
        self.skipped.update()
        if run.epoch < run.config.epochs:
            rank_zero_first(run.ranks, lambda: self.logger.open(run.directory.path, run.step, run.config))
        self._saved_at = time.monotonic()

    def _finished(self) -> Result | None:
        """Return the result of a run that has ended before. For any other, say where it resumes."""
        run, epochs = self.run, self.run.config.epochs
        where = f"after epoch {run.epoch} of {epochs}"
        if run.epoch >= epochs:
            result: Result | None = rank_zero_first(run.ranks, lambda: Result.load(run.directory.path))
            if result is not None:
                run.console.say(f"finished before, {where}: nothing is left to train")
                return result
        if run.step:
            run.console.say(f"goes on {where}, at step {run.step:,} of {epochs * run.steps_per_epoch:,}")
        return None

    def _train(self) -> Result:
        run = self.run
        with stop_requests("this step and a checkpoint") as request:
            run.console.start(run.step)
            while run.epoch < run.config.epochs:
                self.train_epoch(request)
                self.end_epoch()
                self._stop_if(request)
        return self.finish()

    def train_epoch(self, request: StopRequest) -> None:
        """Train from the present step to the end of its epoch."""
        run = self.run
        run.model.train()
        if run.config.model.freeze_norm:
            freeze_norms(run.network)
        run.profiler.start()
        start = run.step - run.epoch * run.steps_per_epoch
        for images, targets in run.profiler.awaited(run.train_batches.epoch(run.epoch, start)):
            self.train_step(images, targets)
            run.step += 1
            if run.step % LOOK_EVERY == 0:
                self.look()
            if run.ranks.world == 1 or run.step % LOOK_EVERY == 0:
                self._stop_if(request)
        self.look()

    def train_step(self, images: Tensor, targets: Tensor) -> None:
        """Take one step of the weights, and one of the policy if it is due."""
        run = self.run
        progress = run.step / run.steps_per_epoch
        rate = learning_rate(run.config.optimizer, progress, run.config.epochs)
        for group, tensor in zip(run.optimizer.param_groups, self._rates, strict=True):
            scaled = rate * group.get("lr_scale", 1)
            group["lr"] = scaled if tensor is None else tensor.fill_(scaled)
        augment = run.outer_loop is None or run.outer_loop.applies(run.step)
        trained = run.inner_step(images, targets, augment)
        count = len(images) if run.ranks.world == 1 else run.train_batches.batch_size
        run.metrics.add(trained.loss, trained.num_errors, count, run.step + 1)
        if run.ema is not None:
            run.ema.update(run.network)
        if run.outer_loop is not None:
            run.outer_loop.step(progress / run.config.epochs, trained)

    def look(self) -> None:
        """Check the loss, show progress, and save if the last checkpoint is old."""
        run = self.run
        bad = run.metrics.first_bad_step()
        if bad is not None:
            last = rank_zero_first(run.ranks, run.directory.checkpoints.load)
            kept = "there is no checkpoint yet" if last is None else f"the checkpoint of step {last['step']} is kept"
            raise SharedError(
                f"the loss is not finite at step {bad} (epoch {(bad - 1) // run.steps_per_epoch + 1}), {kept}; "
                f"{divergence_advice(run.config.optimizer)}"
            )
        rate = run.profiler.rate(run.metrics.images)
        run.console.step(run.step, run.metrics.loss, run.metrics.error, rate, run.policy)
        late = time.monotonic() - self._saved_at > 60 * run.config.checkpoint_minutes
        if self._most(int(late)):
            self.save()

    def end_epoch(self) -> None:
        """Evaluate, write the rows of the epoch, and save."""
        run, config, directory, outer_loop = self.run, self.run.config, self.run.directory, self.run.outer_loop
        run.epoch += 1
        rate = run.profiler.rate(run.metrics.images)
        timing = timing_row(run.profiler.seconds, rate, run.profiler.read())
        due = run.epoch % config.evaluate_every == 0 or run.epoch == config.epochs
        score = evaluate_run(run, run.splits.validation) if due and run.splits.validation is not None else None
        run.validation_error = run.validation_error if score is None else score.error
        row = {
            "epoch": run.epoch,
            "step": run.step,
            "lr": float(run.optimizer.param_groups[0]["lr"]),
            "train_loss": run.metrics.loss,
            "train_error": run.metrics.error,
            "validation_loss": None if score is None else score.loss,
            "validation_error": None if score is None else score.error,
            "outer_updates": 0 if outer_loop is None else outer_loop.outer.updates,
            "outer_skipped": 0 if outer_loop is None else outer_loop.outer.skipped,
        }
        directory.append_rows("metrics.csv", [row])
        directory.append_rows("timing.csv", [{"epoch": run.epoch, "step": run.step, **timing}])
        if outer_loop is not None and outer_loop.record:
            directory.append_rows("outer.csv", [{"epoch": run.epoch, **step} for step in outer_loop.record])
            outer_loop.record.clear()
        record_policy(directory, run.policy, run.epoch, run.step)
        self.logger.write(run.step, {**row, **timing}, run.policy, None if outer_loop is None else outer_loop.last)
        better = score is not None and (run.best is None or score.error < run.best[0])
        if score is not None and better:
            run.best = (score.error, run.epoch)
            directory.keep_best(run.weights())
        run.metrics.clear()
        run.profiler.clear()
        if better or run.epoch % config.checkpoint_every == 0 or run.epoch == config.epochs:
            self.save()
        self.skipped.update()
        run.console.epoch(row, config.epochs, rate, run.policy, timing["model_images_per_second"], due)
        run.console.advise(loader_advice(timing, config.data, run.splits, run.device.type == "cuda"))

    def finish(self) -> Result:
        """Evaluate on the test set, once, and write the result."""
        run = self.run
        epoch, error = run.epoch, run.validation_error
        if run.config.eval_checkpoint == "best" and run.best is not None:
            best = rank_zero_first(run.ranks, run.directory.load_best)
            with fitting(run.directory.best):
                run.evaluated.load_state_dict(best["model"])
            epoch, error = best["epoch"], best["validation_error"]
        test = None if run.splits.test is None else evaluate_run(run, run.splits.test)
        self.skipped.update()
        shared, classes = preferences(run.policy)
        result = Result(
            test_error=None if test is None else test.error,
            validation_error=error,
            epoch=epoch,
            out=str(run.directory.path),
            policy=shared,
            test_loss=None if test is None else test.loss,
            test_metrics={} if test is None else test.metrics,
            error=run.task.metric_name,
            classes=classes,
        )
        run.directory.write_json(FILE, dataclasses.asdict(result))
        run.directory.checkpoints.keep_last_only()
        return result

    def save(self) -> None:
        """Write a checkpoint.

        Raises:
            SharedError: A weight is not finite.
        """
        run = self.run
        if not all(parameter.isfinite().all() for parameter in run.network.parameters()):
            raise SharedError(
                f"the weights are not finite after step {run.step}, the checkpoint before is kept; "
                f"{divergence_advice(run.config.optimizer)}"
            )
        if run.outer_loop is not None:
            run.outer_loop.check_alike()
        run.directory.checkpoints.save(run.state_dict())
        run.ranks.broadcast_object(None)  # no process ends before the checkpoint is written
        self._saved_at = time.monotonic()

    def _stop_if(self, request: StopRequest) -> None:
        """Save and raise `Interrupted` if this process or another was asked to stop."""
        number = self._most(request.number or 0)
        if number:
            self.look()
            self.save()
            raise Interrupted(number, f"stopped at step {self.run.step}, a checkpoint is written")

    def _most(self, number: int) -> int:
        """Return the largest number of all processes. A single process does not wait for its device."""
        if self.run.ranks.world == 1:
            return number
        return int(self.run.ranks.all_reduce_max(torch.tensor(number, device=self.run.device)))
