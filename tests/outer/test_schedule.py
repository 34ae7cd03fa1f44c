"""`PolicyOptimizer` without settings: when its outer steps come, on how many images, and that it resumes."""

import copy
import itertools
import logging
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from madao import Policy, PolicyOptimizer
from madao.hypergrad import Neumann
from madao.outer import ComputeOptions
from madao.outer.budget import LARGEST_LR, LARGEST_STEP, REACH, STEPS
from madao.outer.flops import pass_flops
from madao.outer.policy_adam import PolicyAdam
from madao.outer.schedule import OuterSchedule, open_lr
from tests.helpers.outer_steps import TRAIN, VALIDATION, flat, network


def open_loop(**settings: Any) -> PolicyOptimizer:
    return PolicyOptimizer(Policy(), network(), **settings)


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.rand(8, 1, 8, 8, generator=generator), torch.randint(0, 3, (8,), generator=generator))
        for _ in range(count)
    ]


def test_the_plan_follows_from_the_number_of_steps() -> None:
    outer = open_loop(total_steps=1_000)
    assert outer.schedule is None
    assert not outer.due()
    schedule = outer.plan(TRAIN[0])
    assert schedule.warmup == outer.warmup == 200
    assert schedule.every == -(-800 // STEPS)
    assert schedule.train_images == LARGEST_STEP
    assert outer.compute.curvature_batch == LARGEST_STEP // 4
    assert outer.compute.pathwise_batch == LARGEST_STEP // 8
    assert outer.compute.microbatch == LARGEST_STEP // 16
    (group,) = outer.optimizer.param_groups
    assert isinstance(outer.optimizer, PolicyAdam)
    assert group["lr"] == pytest.approx(REACH / (1_000 // schedule.every - 200 // schedule.every))
    assert outer.plan(TRAIN[0], 99) is schedule, "it is made once"


def test_given_values_stay() -> None:
    policy = Policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.7)
    outer = PolicyOptimizer(
        policy,
        network(),
        total_steps=1_000,
        warmup=3,
        train_images=40,
        validation_images=20,
        optimizer=optimizer,
        compute=ComputeOptions(curvature_batch=7, pathwise_batch=5, microbatch=9),
    )
    schedule = outer.plan(TRAIN[0])
    assert (schedule.warmup, schedule.train_images, schedule.validation_images) == (3, 40, 20)
    assert outer.compute == ComputeOptions(curvature_batch=7, pathwise_batch=5, microbatch=9)
    assert optimizer.param_groups[0]["lr"] == 0.7


def test_with_a_cadence_nothing_is_planned() -> None:
    outer = open_loop(every=30)
    assert isinstance(outer.optimizer, torch.optim.RMSprop)
    assert outer.plan(TRAIN[0]) == OuterSchedule(every=30)
    assert outer.compute == ComputeOptions()


def test_products_and_models_in_training_mode_take_all_images_at_once() -> None:
    assert open_loop(solver=Neumann()).plan(TRAIN[0]).train_images is not None
    for settings in ({"solver": Neumann()}, {"compute": ComputeOptions(inner_mode="train")}):
        outer = open_loop(**settings)
        outer.plan(TRAIN[0])
        assert outer.compute.microbatch is None


def test_without_a_number_of_steps_the_free_work_comes_first_and_then_the_budget() -> None:
    schedule = OuterSchedule(passes=100.0, income=2.0, free=300.0, gap=10)
    done, last, taken = 0, 0, []
    for call in range(1, 301):
        if schedule.is_due(call, done, last):
            done, last = done + 1, call
            taken.append(call)
    assert taken[:4] == [10, 20, 30, 50], "three are free, and 50 calls have paid for one more"
    assert {b - a for a, b in itertools.pairwise(taken[3:])} == {50}
    assert not OuterSchedule(warmup=400, gap=1).is_due(400, 0, 0)
    assert OuterSchedule(warmup=400, gap=1).is_due(401, 0, 0)


def test_the_rate_of_an_open_schedule_falls_once_the_policy_has_come_far() -> None:
    rates = [open_lr(done) for done in range(500)]
    assert rates[:10] == [LARGEST_LR] * 10
    assert rates[-1] == REACH / 500
    assert REACH < sum(rates) < 5 * REACH


def test_an_outer_step_takes_the_newest_training_images_and_enough_validation_images() -> None:
    outer = open_loop(total_steps=10, warmup=0, train_images=20, validation_images=30)
    seen: list[tuple[int, int]] = []
    original = outer.gradient

    def watch(train: Any, validation: Any, *rest: Any) -> Any:
        assert torch.equal(train[0], torch.cat([images for images, _ in given])[-20:])
        seen.append((len(train[0]), outer._validation_count or 0))
        return original(train, validation, *rest)

    outer.gradient = watch  # type: ignore[assignment, method-assign]
    given: list[tuple[Tensor, Tensor]] = []
    loader = DataLoader(TensorDataset(*VALIDATION), 4)
    for batch in batches(10):
        given.append(batch)
        outer.step(batch, loader)
    assert outer.updates > 0
    assert set(seen[2:]) == {(20, 30)}


def test_a_loop_that_resumes_takes_the_same_steps() -> None:
    def loop(outer: PolicyOptimizer, given: list[tuple[Tensor, Tensor]]) -> None:
        for batch in given:
            outer.step(batch, VALIDATION)

    data = batches(12)
    for settings in ({"total_steps": 12, "train_images": 20}, {"train_images": 20}):
        whole = open_loop(**settings)
        loop(whole, data)
        first = open_loop(**settings)
        loop(first, data[:7])
        again = open_loop(**settings)
        again.policy.load_state_dict(copy.deepcopy(first.policy.state_dict()))
        again.load_state_dict(copy.deepcopy(first.state_dict()))
        loop(again, data[7:])
        assert whole.updates > 1
        assert torch.equal(flat(again.policy), flat(whole.policy))


def test_a_budget_that_pays_for_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    outer = PolicyOptimizer(Policy(), torch.nn.Sequential(*_LARGE), total_steps=20, budget=1e-6)
    with caplog.at_level(logging.WARNING, "madao"):
        for _ in range(20):
            assert outer.step((torch.rand(1, 3, 96, 96), torch.tensor([0])), VALIDATION) is None
    assert len(caplog.records) == 1
    assert "needs budget=" in caplog.text


_LARGE = [torch.nn.Conv2d(3, 256, 31, padding=15), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]


def test_operations_of_a_pass_are_counted_and_the_model_stays_as_it_was() -> None:
    model = network()
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    random_state = torch.get_rng_state()
    convolution, linear = 6 * 9 * 36, 216 * 3
    assert pass_flops(model, (1, 8, 8)) == 3 * 2 * (convolution + linear)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.parametrize("transform", [None, lambda images: (images - 0.5) / 0.25])
def test_validation_images_that_are_normalised_already_are_refused(transform: Any) -> None:
    outer = open_loop(every=1, transform=transform)
    images, targets = VALIDATION
    with pytest.raises(ValueError, match=r"validation images must lie in \[0, 1\], got values from -1"):
        outer.step(TRAIN, ((images - 0.5) / 0.25, targets))
    assert outer.updates == 0
    assert outer.step(TRAIN, ((255 * images).to(torch.uint8), targets)) is not None


def test_a_batch_that_is_a_mapping_is_told_by_its_keys() -> None:
    images, targets = VALIDATION
    with pytest.raises(ValueError, match=r"keys 'pixels', 'label'; .*batch\['pixels'\], batch\['label'\]"):
        open_loop(every=1).step(TRAIN, [{"pixels": images, "label": targets}])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"train_batch must be .*'pixels'"):
        open_loop(every=1).step({"pixels": images, "label": targets}, VALIDATION)  # type: ignore[arg-type]


def test_a_loop_that_ticks_has_to_plan_first() -> None:
    outer = open_loop()
    with pytest.raises(ValueError, match=r"call plan\(images\) before"):
        outer.tick()
    outer.plan(TRAIN[0])
    assert outer.tick() in (True, False)


def test_the_transform_decides_about_the_size_of_images() -> None:
    def smaller(images: Tensor) -> Tensor:
        return images[..., :8, :8]

    large = torch.rand(4, 1, 32, 32)
    assert open_loop(transform=smaller).plan(large) == open_loop().plan(large[..., :8, :8])


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf")])
def test_a_budget_that_is_none_is_refused(budget: float) -> None:
    with pytest.raises(ValueError, match="budget must be above 0"):
        open_loop(budget=budget)


def test_the_first_planned_step_fills_the_memory_of_the_solver() -> None:
    planned, given = open_loop(total_steps=4, warmup=0), open_loop(every=1)
    for outer, rows in ((planned, 15), (given, 1)):
        outer.step(TRAIN, VALIDATION)
        history = outer.state_dict()["recent"]["rows"].float()
        lengths = history.norm(dim=1)
        assert (lengths > 0).sum() == rows
        torch.testing.assert_close(lengths[lengths > 0], torch.ones(rows), rtol=0.02, atol=0)
        outer.step(TRAIN, VALIDATION)
    assert torch.linalg.matrix_rank(history_of(planned)) == 15, "each gradient is of other images and draws"


def history_of(outer: PolicyOptimizer) -> Tensor:
    return outer.state_dict()["recent"]["rows"].double()  # type: ignore[no-any-return]
