"""The problem of an outer step: which images, draws, targets and transforms are in which loss."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao import Policy
from madao.hypergrad import (
    Deflated,
    GaussNewton,
    Identity,
    Influence,
    LeaveOneOut,
    Neumann,
    SameExample,
    Solution,
    System,
    Term,
    Unaugmented,
)
from madao.hypergrad.estimators.baselines import Batch
from madao.hypergrad.pytree import Vector
from madao.outer.outer_step import OuterRequest
from tests.helpers.outer_steps import TRAIN, VALIDATION, build, network, policy_optimizer, smooth_network


def test_curvature_is_of_other_draws_than_those_that_are_scored() -> None:
    problem = build().builder.build(OuterRequest(), (*TRAIN, *VALIDATION))
    scored, again = problem.inputs
    assert scored.requires_grad
    assert not again.requires_grad
    assert (scored != again).flatten(1).any(1).float().mean() > 0.5
    (inner,), (curvature,) = problem.inner, problem.curvature  # type: ignore[misc]

    def losses(term: Term, *inputs: Tensor) -> Tensor:
        assert term.of is not None
        return term.loss(problem.params, term.of(inputs))

    assert torch.equal(losses(inner, scored, again), losses(inner, scored, scored))
    assert torch.equal(losses(curvature, scored, again), losses(inner, again, again))
    assert not torch.equal(losses(curvature, scored, again), losses(inner, scored, again))
    assert problem.classes is not None
    assert torch.equal(problem.classes, TRAIN[1])


@pytest.mark.parametrize("curvature_batch", [None, 5])
def test_a_solver_that_takes_any_draw_has_the_images_that_are_scored(curvature_batch: int | None) -> None:
    outer = build(solver=Neumann(2), curvature_batch=curvature_batch)
    problem = outer.builder.build(OuterRequest(), (*TRAIN, *VALIDATION))
    assert len(problem.inputs) == 1
    if curvature_batch is None:
        assert problem.curvature is None
        return
    ((term,), inputs) = problem.curvature, problem.inputs  # type: ignore[misc]
    assert term.of is not None
    images, labels = term.of(inputs)
    assert torch.equal(images, inputs[0][:5])
    assert torch.equal(labels, TRAIN[1][:5])


def test_each_loss_has_its_own_mode() -> None:
    outer = build(inner_mode="train", outer_mode="eval", solver=Neumann(2), curvature_batch=5)
    problem = outer.builder.build(OuterRequest(), (*TRAIN, *VALIDATION))
    modes = [term.loss.model.mode for (term,) in (problem.inner, problem.curvature, problem.outer)]  # type: ignore[union-attr,misc]
    assert modes == ["train", "train", "eval"]


@pytest.mark.parametrize("as_bytes", [False, True])
def test_each_transform_sees_its_own_images(as_bytes: bool) -> None:
    def images(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return ((batch[0] * 255).to(torch.uint8), batch[1]) if as_bytes else batch

    both: list[Tensor] = []
    training: list[Tensor] = []

    def noting(seen: list[Tensor], images: Tensor) -> Tensor:
        seen.append(images.detach())
        return images

    estimator = Influence(Unaugmented())  # which needs images that are not augmented, too
    outer = build(solver=Identity(0.05), estimator=estimator, transform=lambda images: noting(both, images))
    outer.update(images(TRAIN), images(VALIDATION), train_transform=lambda images: noting(training, images))
    assert [len(seen) for seen in both] == [16]
    torch.testing.assert_close(both[0], VALIDATION[0], atol=1 / 255, rtol=0)
    augmented, plain = training
    torch.testing.assert_close(plain, TRAIN[0], atol=1 / 255, rtol=0)
    assert augmented.shape == plain.shape
    assert not torch.equal(augmented, plain)
    assert all(float(seen.min()) >= 0 and float(seen.max()) <= 1 + 1e-6 for seen in training)
    both.clear()
    outer.update(TRAIN, VALIDATION)  # the training transform was for that call only
    assert [len(images) for images in both] == [24, 24, 16]
    assert len(training) == 2


def test_no_image_is_transformed_in_vain() -> None:
    seen: list[int] = []

    def noting(images: Tensor) -> Tensor:
        seen.append(len(images))
        return images

    build(transform=noting).update(TRAIN, VALIDATION)
    assert seen == [24, 24, 16]  # the draws that are scored, other draws, and validation


def test_a_train_transform_counts_in_the_training_loss_alone() -> None:
    def darkened(images: Tensor) -> Tensor:
        return 0.5 * images

    pairs = ((None, None), (None, darkened), (darkened, None), (darkened, darkened))
    neither, training, both, the_same = (
        build(solver=Identity(0.05), transform=transform).update(TRAIN, VALIDATION, train_transform).stats
        for transform, train_transform in pairs
    )
    assert training.outer_loss == neither.outer_loss != both.outer_loss
    assert training.grad_norm != neither.grad_norm
    assert the_same == both


def test_a_baseline_derived_from_ours_may_use_images_that_are_not_augmented() -> None:
    class Mixed(LeaveOneOut):
        def __call__(self, batch: Batch) -> Tensor:
            assert batch.plain_influence is not None
            return 0.5 * (super().__call__(batch) + batch.plain_influence())

    assert build(solver=Identity(0.05), estimator=Influence(Mixed())).update(TRAIN, VALIDATION).applied


def test_several_draws_of_each_image_are_one_larger_batch() -> None:
    seen: list[Tensor] = []

    def transform(images: Tensor, numbers: Tensor) -> Tensor:
        seen.append(numbers)
        return images

    model, repeated = network(dropout=0.0), [tensor.repeat_interleave(3, 0) for tensor in TRAIN]
    settings: dict[str, Any] = {"solver": Identity(1.0), "estimator": Influence(LeaveOneOut())}
    several = policy_optimizer(Policy(seed=5), model, draws=3, **settings)
    one = policy_optimizer(Policy(seed=5), model, **settings)
    step, expected = (
        several.update((*TRAIN, torch.arange(24)), VALIDATION, transform),
        one.update((*repeated,), VALIDATION),
    )
    assert torch.equal(seen[0], torch.arange(24).repeat_interleave(3))
    assert step.stats.grad_norm == pytest.approx(expected.stats.grad_norm, rel=1e-5)
    settings["estimator"] = Influence(SameExample())
    assert policy_optimizer(Policy(), model, draws=3, **settings).update(TRAIN, VALIDATION).applied


@pytest.mark.parametrize("settings", [{"microbatch": 7}, {"curvature_batch": 24}, {"curvature_batch": 5}])
def test_microbatches_change_nothing_and_a_curvature_batch_the_hessian_alone(settings: dict[str, int]) -> None:
    def gradient(**settings: int) -> Tensor:
        outer = policy_optimizer(Policy().double(), smooth_network().double(), solver=Neumann(3, 0.02), **settings)
        train, validation = ((images.double(), labels) for images, labels in (TRAIN, VALIDATION))
        return torch.cat([part.flatten() for part in outer.gradient(train, validation)[0]])

    whole, found = gradient(), gradient(**settings)
    assert whole.norm() > 0
    if settings == {"curvature_batch": 5}:
        assert (found - whole).norm() > 1e-4 * whole.norm()
    else:
        torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-15)


def test_microbatches_bound_every_pass_and_have_dropout_masks_of_their_own() -> None:
    sizes: list[int] = []
    masks: list[Tensor] = []

    class Watch(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            sizes.append(len(images))
            masks.append(F.dropout(torch.ones(5, 64), 0.5))
            return images

    model = nn.Sequential(Watch(), nn.Flatten(), nn.Linear(64, 3))
    policy_optimizer(Policy(), model, microbatch=5, solver=Neumann(5, 1e-3)).update(TRAIN, VALIDATION)
    assert max(sizes) == 5
    masks.clear()
    outer = policy_optimizer(Policy(), model, microbatch=5, solver=Identity(1.0), check_every=0)
    for _ in range(2):
        outer.step(TRAIN, VALIDATION)
    assert len({mask.numpy().tobytes() for mask in masks}) >= 2 * 5, "nor do two steps share them"


@pytest.mark.parametrize("count", [None, 5])
def test_the_gradient_that_is_remembered_is_of_another_draw_for_the_first_images(count: int | None) -> None:
    outer = build(solver=Deflated(2), curvature_batch=count, weight_decay=0.1)
    again, (images, labels) = build().policy, TRAIN
    shade = torch.linspace(0.5, 1.0, len(images))[:, None, None, None]
    outer.update((*TRAIN, shade), VALIDATION, train_transform=lambda augmented, shade: augmented * shade)
    again.sample(images, relaxed=True)
    model = outer.model.eval()
    augmented = again(images[:count]) * shade[:count]
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(F.cross_entropy(model(augmented), labels[:count]), parameters)
    flat = torch.cat([(g + 0.1 * p.detach()).flatten() for g, p in zip(gradients, parameters, strict=True)])
    found = outer.state_dict()["recent"]["rows"][0].float()
    torch.testing.assert_close(found, flat / flat.norm(), rtol=0.01, atol=1e-4)


@pytest.mark.parametrize("count", [None, 5])
def test_the_gauss_newton_matrix_is_of_another_draw_for_the_first_images(count: int | None) -> None:
    seen: list[tuple[Vector, Vector]] = []

    class Spied(GaussNewton):
        def solve(self, system: System, state: None = None) -> Solution:
            seen.append((system.v, system.gauss_newton(system.v)))
            return super().solve(system)

    outer = build(solver=Spied(2), curvature_batch=count, weight_decay=0.1)
    again, (images, _) = build().policy, TRAIN
    outer.update(TRAIN, VALIDATION)
    again.sample(images, relaxed=True)
    model, augmented = outer.model.eval(), again(images[:count])
    names = [name for name, _ in model.named_parameters()]

    def outputs(*params: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(model, dict(zip(names, params, strict=True)), (augmented,))
        return found

    params = tuple(parameter.detach() for parameter in model.parameters())
    ((v, product),) = seen
    logits, moved = torch.func.jvp(outputs, params, v)[:2]
    chance = logits.softmax(1)
    curved = chance * moved - chance * (chance * moved).sum(1, keepdim=True)
    back = torch.func.vjp(outputs, *params)[1](curved / len(augmented))
    for found, expected, direction in zip(product, back, v, strict=True):
        torch.testing.assert_close(found, expected + 0.1 * direction, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("microbatch", [None, 5])
def test_magnitudes_are_learned_from_a_pathwise_batch_and_all_images_are_scored(microbatch: int | None) -> None:
    class Fixed(Policy):
        """A policy that draws the same for the first images of every batch."""

        def sample(self, images: Tensor, *_: Any, **how: Any) -> Any:
            everybody = TRAIN[0][:1].expand(24, -1, -1, -1)
            return super().sample(everybody, torch.Generator().manual_seed(5), **how)[: len(images)]

    def gradients(count: int, **settings: Any) -> tuple[Tensor, ...]:
        outer = policy_optimizer(Fixed(), network(), solver=Identity(1.0), **settings)
        found, _ = outer.gradient((TRAIN[0][:count], TRAIN[1][:count]), VALIDATION)
        return tuple(gradient.clone() for gradient in found)

    whole, few = gradients(24), gradients(7)
    selection, application, magnitude = gradients(24, pathwise_batch=7, microbatch=microbatch)
    torch.testing.assert_close(selection, whole[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(application, whole[1], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(magnitude, few[2], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(whole[2], few[2], rtol=1e-2)
    assert all(map(torch.equal, gradients(24, pathwise_batch=100), whole))


def test_float32_is_no_autocast() -> None:
    found = [build(autocast=dtype).update(TRAIN, VALIDATION).stats.outer_loss for dtype in (None, torch.float32)]
    assert found[0] == found[1] != build(autocast=torch.bfloat16).update(TRAIN, VALIDATION).stats.outer_loss
