"""Queue, momentum, loss and hypergradient against their definitions."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.distributed.group import Shard
from madao.hypergrad import Identity, Neumann, Relaxed
from madao.models.encoder import Encoder, SplitBatchNorm, split_norms
from madao.outer import ComputeOptions, PolicyOptimizer
from madao.policy import BaseAugmentation, Policy
from madao.tasks import MoCo
from madao.training.inner_step import InnerStep

STANDARD = BaseAugmentation(padding=1, cutout=0, mean=(0.4,), std=(0.3,))


def encoder(norm: bool = False, dimensions: int = 5, dtype: torch.dtype = torch.float64) -> Encoder:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3, padding=1), *([nn.BatchNorm2d(4)] if norm else []), nn.Tanh()]
    return Encoder(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten()), 16, dimensions, True).to(dtype)


def task(model: Encoder | None = None, **settings: Any) -> MoCo:
    model = encoder() if model is None else model
    return MoCo(model, model.dimensions, **{"base": STANDARD, "classes": 3, "queue": 7, **settings})


def images(count: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 1, 8, 8), generator=generator, dtype=torch.uint8)


def keys(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, 5, generator=generator, dtype=torch.float64), dim=1)


def test_the_queue_is_first_in_first_out_and_wraps() -> None:
    moco = task()
    queue = [*moco.queue.unbind()]  # oldest first
    for number in range(5):
        newest = keys(3, number)
        moco.after_step(newest)
        queue = [*queue, *newest.unbind()][3:]
        oldest = int(moco.place)
        assert oldest == 3 * (number + 1) % 7
        assert torch.equal(moco.queue.roll(-oldest, 0), torch.stack(queue))


def test_the_key_encoder_is_the_geometric_mean_of_the_past() -> None:
    """θ_k = m^n θ_0 + (1 − m) Σ_t m^(n−t) θ_t."""
    moco, m = task(momentum=0.9), 0.9
    past = [[p.detach().clone() for p in moco.encoder.parameters()]]
    for step in range(4):
        with torch.no_grad():
            for parameter in moco.encoder.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step)))
        past.append([p.detach().clone() for p in moco.encoder.parameters()])
        moco.after_step(keys(1, step))
    for place, parameter in enumerate(moco.key.parameters()):
        expected = m**4 * past[0][place] + (1 - m) * sum(m ** (4 - t) * past[t][place] for t in range(1, 5))
        torch.testing.assert_close(parameter, expected)
        assert not parameter.requires_grad


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_the_loss_is_info_nce(temperature: float) -> None:
    moco, own = task(temperature=temperature), keys(4, 1)
    outputs = 3 * torch.randn(4, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    losses, num_errors = [], 0
    for query, key in zip(outputs.tolist(), own.tolist(), strict=True):
        length = math.sqrt(sum(value**2 for value in query))
        similar = [
            sum(a / length * b for a, b in zip(query, other, strict=True)) for other in (key, *moco.queue.tolist())
        ]
        exponentials = [math.exp(value / temperature) for value in similar]
        losses.append(-math.log(exponentials[0] / sum(exponentials)))
        num_errors += max(similar[1:]) >= similar[0]
    torch.testing.assert_close(moco.losses(outputs, own), torch.tensor(losses, dtype=torch.float64))
    assert 0 < num_errors < 4 or temperature == 0.5
    assert int(moco.num_errors(outputs, own)) == num_errors


def test_outer_steps_do_not_count_the_newest_keys_which_are_the_batchs_own() -> None:
    moco, own = task(), keys(3, 1)
    outputs = torch.randn(3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert torch.equal(moco.outer_losses(outputs, own), moco.losses(outputs, own))  # none is new
    for step in range(3):  # the last of these goes around the end of the queue
        moco.after_step(keys(3, 10 + step))
    older = [key for key in moco.queue if not any(torch.equal(key, new) for new in keys(3, 12))]
    assert len(older) == 4
    logits = torch.cat([own[:, None], torch.stack(older).expand(3, 4, -1)], 1) @ F.normalize(outputs, dim=1)[..., None]
    expected = F.cross_entropy(logits[..., 0] / moco.temperature, torch.zeros(3, dtype=torch.int64), reduction="none")
    torch.testing.assert_close(moco.outer_losses(outputs, own), expected)
    again = task()
    again.load_state_dict(moco.state_dict())
    assert torch.equal(again.outer_losses(outputs, own), moco.outer_losses(outputs, own))


def test_views_have_crops_and_draws_of_their_own_and_the_key_side_has_no_gradient() -> None:
    moco, policy = task(queue=12), Policy(seed=1)
    seen: list[Tensor] = []
    moco.key.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    moco.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    optimizer = torch.optim.SGD(moco.encoder.parameters(), lr=0.1)
    standard = BaseAugmentation(padding=2, cutout=0, mean=(0.4,), std=(0.3,))
    moco.base = standard
    step = InnerStep(
        moco.encoder.float(),
        moco,
        backward=Tensor.backward,
        optimizer=optimizer,
        base_augmentation=standard,
        policy=policy,
    )
    moco.key.float()
    before = [parameter.clone() for parameter in moco.key.parameters()]
    trained = step(images(), torch.zeros(6, dtype=torch.int64), True)
    key_inputs, query_inputs = seen
    assert not torch.equal(trained.cropped, trained.targets)
    assert key_inputs.shape == query_inputs.shape
    assert not torch.equal(key_inputs, query_inputs)
    state = policy.get_extra_state()
    policy = Policy(seed=1)  # from the start again
    draws = [policy.sample(images()) for _ in range(2)]
    torch.testing.assert_close(query_inputs, standard.normalise(policy.augment(trained.cropped, draws[0])))
    torch.testing.assert_close(key_inputs, standard.normalise(policy.augment(trained.targets, draws[1])))
    assert torch.equal(state["generators"]["cpu"], policy.get_extra_state()["generators"]["cpu"])
    # Moved by momentum alone.
    for old, new, query in zip(before, moco.key.parameters(), moco.encoder.parameters(), strict=True):
        torch.testing.assert_close(new, torch.lerp(old, query, 0.001))


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("solver", [Identity(0.5), Neumann(2, 0.01)], ids=["identity", "neumann"])
def test_the_hypergradient_is_that_of_central_differences(mode: Any, solver: Any) -> None:
    """−∂/∂φ ⟨q, ∇θ f(θ, φ)⟩ for magnitudes, through queries and keys; θ of the query encoder alone."""
    moco = task(encoder(norm=True), training=mode == "train", temperature=0.3)
    with torch.no_grad():
        for parameter in moco.key.parameters():  # other than the queries'
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    policy = Policy(operations=["Brightness", "Contrast"], stages=1).double()
    for frozen in (policy.selection_logits, policy.application_logits):
        frozen.requires_grad_(False)
    with torch.no_grad():
        policy.application_logits.fill_(20)
    queries, others = images(seed=1) / 255 * 0.5 + 0.2, images(seed=2) / 255 * 0.5 + 0.2  # where nothing is clipped
    queries, others = queries.double(), others.double()
    held_out = images(8, 3).double() / 255
    validation = moco.outer(STANDARD, held_out, torch.zeros(8), lambda: held_out)
    outer = PolicyOptimizer(
        policy,
        moco.encoder,
        moco.losses,
        optimizer=torch.optim.SGD([policy.magnitude_logits], lr=1.0),
        transform=STANDARD.normalise,
        solver=solver,
        estimator=Relaxed(),
        views=2,
        soft_targets=moco.soft_targets,
        compute=ComputeOptions(inner_mode=mode),
    )
    buffers = {name: value.clone() for name, value in moco.key.named_buffers()}
    policy.manual_seed(3)
    (found,), stats = outer.gradient((queries, others), validation)
    assert stats.usable
    for name, value in moco.key.named_buffers():
        assert torch.equal(value, buffers[name])
    model = moco.encoder

    def gradient(loss: Tensor, **settings: Any) -> list[Tensor]:
        return list(torch.autograd.grad(loss, list(model.parameters()), **settings))

    def inner(shift: Tensor | None = None) -> Tensor:
        """f by its definition."""
        policy.manual_seed(3)
        with torch.no_grad():
            if shift is not None:
                policy.magnitude_logits.add_(shift)
            draws = [policy.sample(queries) for _ in range(2)]
            if shift is not None:
                policy.magnitude_logits.sub_(shift)
            moco.key.train(mode == "train")
            key = F.normalize(moco.key(STANDARD.normalise(policy.augment(others, draws[1]))), dim=1)
            moco.key.load_state_dict(buffers, strict=False)
        model.train(mode == "train")
        query = F.normalize(model(STANDARD.normalise(policy.augment(queries, draws[0]))), dim=1)
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ moco.queue.T], 1) / moco.temperature
        return F.cross_entropy(logits, torch.zeros(6, dtype=torch.int64))

    statistics = {name: value.clone() for name, value in model.named_buffers()}
    model.eval()
    query = F.normalize(model(STANDARD.normalise(validation[0])), dim=1)
    logits = torch.cat([(query * validation[1]).sum(1, keepdim=True), query @ moco.queue.T], 1) / moco.temperature
    v = gradient(F.cross_entropy(logits, torch.zeros(8, dtype=torch.int64)))
    scale, terms = (0.5, 0) if isinstance(solver, Identity) else (0.01, 2)
    q = term = v
    for _ in range(terms):
        model.load_state_dict(statistics, strict=False)
        slope = sum((g * t).sum() for g, t in zip(gradient(inner(), create_graph=True), term, strict=True))
        assert isinstance(slope, Tensor)
        term = [t - scale * h for t, h in zip(term, gradient(slope), strict=True)]
        q = [a + b for a, b in zip(q, term, strict=True)]
    q = [scale * part for part in q]
    step = 1e-5
    for place in range(2):
        shift = torch.zeros(1, 2, dtype=torch.float64)
        shift[0, place] = step
        sides = []
        for sign in (1, -1):
            model.load_state_dict(statistics, strict=False)
            sides.append(sum(float((a * b).sum()) for a, b in zip(q, gradient(inner(sign * shift)), strict=True)))
        expected = -(sides[0] - sides[1]) / (2 * step)
        assert float(found[0, place]) == pytest.approx(expected, rel=1e-5)
        assert abs(expected) > 1e-6


class FakeGroup:
    """A group of two processes in which the second one's views are known."""

    rank, world = 0, 2

    def __init__(self, other: Tensor) -> None:
        self.other = other

    def places(self, counts: Sequence[int], device: torch.device) -> list[Shard]:
        return [Shard.of(self.rank, [count, len(self.other)]) for count in counts]

    def all_gather(self, values: Tensor, place: Shard | None = None) -> Tensor:
        return torch.cat([values, self.other]) if values.dtype == torch.uint8 else values

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        self.shared = [*tensors]

    def all_reduce_sum(self, vector: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (self.seen,) = vector
        return vector


def test_keys_of_several_processes_are_computed_apart_from_their_queries() -> None:
    moco = task(encoder(norm=True, dtype=torch.float32))
    group: Any = FakeGroup(images(5, seed=9))
    moco.group = group
    own = images(6)
    found = moco.inner(None, own, None)
    everything = torch.cat([own, group.other])
    alone = task(encoder(norm=True, dtype=torch.float32))
    expected = alone.inner(None, everything[0::2], None)  # this process has every second of all
    torch.testing.assert_close(group.seen[0::2], expected)
    assert not group.seen[1::2].any()  # the other's
    torch.testing.assert_close(found, group.seen[:6])
    moco.after_step(keys(2, 1).float())
    assert [id(tensor) for tensor in group.shared] == [id(tensor) for tensor in moco.key.buffers()]  # statistics
    assert len(group.shared) == 3


def test_split_norms_are_norms_of_the_parts() -> None:
    values = torch.randn(12, 3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norm, parts = SplitBatchNorm(3, 4).double(), [nn.BatchNorm2d(3).double() for _ in range(4)]
    found = norm(values)
    for number, part in enumerate(parts):
        torch.testing.assert_close(found[number::4], part(values[number::4]))
    mean = torch.stack([dict(part.named_buffers())["running_mean"] for part in parts]).mean(0)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.eval()(values), nn.functional.batch_norm(values, mean, norm.running_var))
    moco = task(split_norms(encoder(norm=True), 2), splits=2)
    order = moco._transposed(6, torch.device("cpu")).tolist()
    assert sorted(order) == list(range(6))
    together = [{order[place] for place in range(part, 6, 2)} for part in range(2)]  # of a key's part
    assert all(len(group & set(range(part, 6, 2))) in (1, 2) for group in together for part in range(2))
    direct = F.normalize(moco.key(STANDARD.normalise(images()[order].double() / 255)), dim=1)
    again = task(split_norms(encoder(norm=True), 2), splits=2)
    torch.testing.assert_close(again.inner(None, images().double() / 255, None)[order], direct)


@pytest.mark.parametrize(("centre", "deviation"), [(0.0, 1.0), (100.0, 0.01)])
def test_split_norms_are_the_same_compiled_and_leave_channels_last(centre: float, deviation: float) -> None:
    generator = torch.Generator().manual_seed(0)
    values, direction = (torch.randn(12, 3, 4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    values = centre + deviation * values
    found = []
    for dtype in (torch.float64, torch.float32):
        norm = SplitBatchNorm(3, 4, momentum=0.3).to(dtype)
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([0.5, 2.0, -1.0]))
            norm.bias.copy_(torch.tensor([1.0, -1.0, 0.0]))
        inputs = values.to(dtype).to(memory_format=torch.channels_last).requires_grad_()
        fast = torch.compile(norm, dynamic=False, fullgraph=True, backend="aot_eager")
        run = fast if dtype == torch.float32 else norm
        for _ in range(2):
            outputs = run(inputs)
        gradients = torch.autograd.grad((outputs.tanh() * direction).sum(), (inputs, norm.weight, norm.bias))
        found.append([outputs.detach(), *gradients, norm.running_mean, norm.running_var])
    assert found[1][0].is_contiguous(memory_format=torch.channels_last)
    tolerance = 1e-5 if centre == 0 else 5e-3  # of inputs in single precision six digits are left
    for exact, single in zip(*found, strict=True):
        torch.testing.assert_close(single.double(), exact, rtol=tolerance, atol=tolerance * float(exact.abs().max()))
    torch.testing.assert_close(found[1][-1].double(), found[0][-1], rtol=1e-2 if centre else 1e-6, atol=0)


def test_a_compiled_key_encoder_gives_the_same_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> MoCo:
        return task(split_norms(encoder(norm=True, dtype=torch.float32), 2), splits=2)

    plain, fast, really = build(), build(), torch.compile
    calls: list[int] = []

    def noted(module: nn.Module, **_: Any) -> Any:
        run = really(module, dynamic=False, backend="aot_eager")  # without what takes seconds

        def counted(inputs: Tensor) -> Any:
            calls.append(len(inputs))
            return run(inputs)

        return counted

    monkeypatch.setattr(torch, "compile", noted)
    fast.compile()
    for seed in range(2):
        keys = [moco.inner(None, images(seed=seed), None) for moco in (fast, plain)]
        torch.testing.assert_close(*keys)
    assert len(calls) == 2
    for a, b in zip(fast.key.buffers(), plain.key.buffers(), strict=True):
        torch.testing.assert_close(a, b)  # statistics go on
    policy = Policy(stages=1, operations=["Brightness"])
    given, state = images().float() / 255, policy.get_extra_state()
    gradients = []
    for moco in (fast, plain):  # outer steps differentiate twice, which compiled code cannot
        policy.set_extra_state(state)
        draws = [policy.sample(given, relaxed=True) for _ in range(2)]
        total = moco.soft_targets(policy, given, draws).square().mul(torch.arange(5.0)).sum()
        (first,) = torch.autograd.grad(total, policy.magnitude_logits, create_graph=True)
        gradients.append(torch.autograd.grad(first.sum(), policy.magnitude_logits)[0])
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().sum() > 0
    assert len(calls) == 2
