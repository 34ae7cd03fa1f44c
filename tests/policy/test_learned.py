"""The learned policy: its probabilities, gradients and start."""

import copy
import dataclasses

import pytest
import torch
from scipy import stats
from torch import Tensor

from madao.config.train_config import AugmentConfig
from madao.errors import UserError
from madao.ops import OPERATIONS, PAPER
from madao.policy import ClassPolicy, Draw, FrozenPolicy, ImagePolicy, Policy, RandAugment, Uniform, sampling
from madao.training.builders.policy import build_policy
from tests.helpers.policies import scattered


def uneven(stages: int = 2) -> Policy:
    return scattered(Policy(stages), 1.0)


def test_start_is_the_papers() -> None:
    policy = Policy()
    assert sum(parameter.numel() for parameter in policy.parameters()) == 78
    torch.testing.assert_close(policy.selection, torch.full((2, 14), 1 / 14))
    torch.testing.assert_close(policy.application, torch.full((2, 14), 0.6225), rtol=0, atol=1e-4)
    assert (policy.stages, policy.temperature, policy.application_temperature, policy.fill) == (2, 0.05, 0.1, 0.0)
    has = torch.tensor([OPERATIONS[name].has_magnitude for name in PAPER])
    torch.testing.assert_close(policy.magnitude, torch.where(has, 0.6225, 0.0).expand(2, 14), rtol=0, atol=1e-4)


def test_a_gentle_start_changes_magnitudes_and_nothing_else() -> None:
    classes = ClassPolicy(3, init_magnitude=0.1)
    assert classes.spec().of_class("1") == classes.spec().of_class(None)
    for policy in (Policy(init_magnitude=0.1), classes, ImagePolicy(init_magnitude=0.1)):
        torch.testing.assert_close(policy.selection, Policy().selection)
        torch.testing.assert_close(policy.application, Policy().application)
        torch.testing.assert_close(policy.magnitude, Policy().magnitude * 0.1 / torch.tensor(0.5).sigmoid())
    assert Policy(init_magnitude=0.1).spec() == Uniform(magnitude=0.1).spec()


@pytest.mark.parametrize("method", ["learned", "uniform"])
def test_settings_of_a_run_reach_its_policy(method: str) -> None:
    for start in (None, 0.1):
        policy = build_policy(AugmentConfig(method=method, init_magnitude=start, magnitude_jitter=0.5), None, 0)
        assert isinstance(policy, Policy | Uniform)
        uniform = Uniform(magnitude_jitter=0.5) if start is None else Uniform(magnitude=start, magnitude_jitter=0.5)
        assert policy.spec() == uniform.spec()
    with pytest.raises(UserError):
        AugmentConfig(method=method, init_magnitude=0)


def law(policy: Policy) -> tuple[Tensor, Tensor, Tensor]:
    return policy.selection.detach(), policy.application.detach(), policy.magnitude.detach()


@pytest.mark.parametrize(("frozen", "relaxed"), [(False, False), (False, True), (True, False)])
def test_frequencies_match_the_probabilities(frozen: bool, relaxed: bool) -> None:
    """Chi-square over 10⁵ draws: selection, application given the operation, sign; stages independent."""
    policy = uneven()
    selection, application, magnitude = law(policy)
    images = torch.empty(100_000, 3, 1, 1)
    draw = FrozenPolicy(policy.spec(), seed=5).sample(images) if frozen else policy.sample(images, relaxed=relaxed)
    for stage in range(2):
        choice, applied = draw.choice[stage], draw.applied[stage]
        counts = torch.bincount(choice, minlength=14).double()
        expected = selection[stage].double() / selection[stage].double().sum() * len(choice)
        assert stats.chisquare(counts, expected).pvalue > 1e-3
        hits = torch.bincount(choice[applied], minlength=14).double()
        variance = counts * application[stage] * (1 - application[stage])
        statistic = ((hits - counts * application[stage]).square() / variance).sum()
        assert stats.chi2.sf(float(statistic), df=14) > 1e-3
        ups = int((draw.sign[stage] > 0).sum())
        assert stats.binomtest(ups, len(choice)).pvalue > 1e-3
        assert set(draw.sign[stage].unique().tolist()) == {-1.0, 1.0}
        torch.testing.assert_close(draw.magnitude[stage], magnitude[stage][choice], rtol=1e-4, atol=1e-5)
    joint = torch.bincount(draw.choice[0] * 14 + draw.choice[1], minlength=196).reshape(14, 14)
    assert stats.chi2_contingency(joint).pvalue > 1e-3


def test_relaxed_and_hard_draws_are_the_same_draw() -> None:
    policy, images = uneven(), torch.rand(64, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    hard = policy.sample(images, torch.Generator().manual_seed(1))
    relaxed = policy.sample(images, torch.Generator().manual_seed(1), relaxed=True)
    for name in ("choice", "applied", "magnitude", "sign"):
        assert torch.equal(getattr(hard, name), getattr(relaxed, name))
    assert relaxed.weight is not None
    assert relaxed.gate is not None
    assert (relaxed.weight == 1).all()
    assert torch.equal(relaxed.gate == 1, relaxed.applied)
    assert torch.equal(policy.augment(images, hard), policy.augment(images, relaxed))


def test_a_replayed_draw_gives_identical_images(crops: Tensor) -> None:
    policy = uneven()
    for images in (crops, crops / 255):
        draw = policy.sample(images)
        first = policy.augment(images, draw)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(1.0)
        assert torch.equal(policy.augment(images, draw), first)
        assert torch.equal(policy.augment(images, draw.detach()), first)
        assert torch.equal(policy.augment(images[3:9], draw[3:9]), policy.augment(images, draw)[3:9])
        assert not torch.equal(policy(images), first)


def test_every_parameter_receives_a_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2048, 3, 18, 18, generator=generator)  # Equalize leaves fewer than 256 pixels alone
    policy = Policy()
    result = policy.augment(images, policy.sample(images, generator, relaxed=True))
    (result * torch.randn(result.shape, generator=generator)).sum().backward()
    gradients = {name: parameter.grad for name, parameter in policy.named_parameters()}
    assert sum(gradient.numel() for gradient in gradients.values() if gradient is not None) == 78
    for gradient in gradients.values():
        assert gradient is not None
        assert torch.isfinite(gradient).all()
        assert (gradient != 0).all()
    assert not policy(images[:8]).requires_grad, "the training loss does not reach the policy"


def test_relaxed_gradients_equal_the_closed_form() -> None:
    """Equations 10 to 12 on one stage of three operations, in float64, term by term.

    With u = softmax((l + γ) / τ), i = argmax u and cotangent c_b: in the selection logit j,
    Σ_b (1[i_b = j] − u_bj) / τ · ⟨c_b, result_b⟩. With s = sigmoid((a_i + λ) / t): in the application logit j,
    Σ_{b: i_b = j} s (1 − s) / t · ⟨c_b, O_j(x_b) − x_b⟩.
    """
    policy = Policy(stages=1, operations=["Brightness", "Invert", "Rotate"], temperature=0.4).double()
    with torch.no_grad():
        policy.selection_logits.copy_(torch.tensor([[0.3, -0.2, 0.5]]))
        policy.application_logits.copy_(torch.tensor([[0.1, 0.7, -0.4]]))
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(12, 3, 4, 5, generator=generator, dtype=torch.float64)
    cotangent = torch.randn(images.shape, generator=generator, dtype=torch.float64)

    draw = policy.sample(images, torch.Generator().manual_seed(7), relaxed=True)
    result = policy.augment(images, draw)
    (result * cotangent).sum().backward()

    again = torch.Generator().manual_seed(7)
    gumbel = sampling.gumbel_noise((1, 12, 3), again, torch.float64)[0]
    logistic = sampling.logistic_noise((1, 12), again, torch.float64)[0]
    selection = torch.zeros(3, dtype=torch.float64)
    application = torch.zeros(3, dtype=torch.float64)
    logits, switches = policy.selection_logits[0].detach(), policy.application_logits[0].detach()
    for b in range(12):
        u = ((logits + gumbel[b]) / 0.4).softmax(0)
        i = int(u.argmax())
        assert i == draw.choice[0, b]
        one = slice(b, b + 1)
        changed = policy.operations[i](images[one], draw.magnitude[0, one].detach(), draw.sign[0, one])
        assert bool(draw.applied[0, b]) == bool(switches[i] + logistic[b] > 0)
        value = changed if draw.applied[0, b] else images[one]
        selection += (torch.eye(3)[i] - u) / 0.4 * (cotangent[one] * value).sum()
        s = ((switches[i] + logistic[b]) / 0.1).sigmoid()
        application[i] += s * (1 - s) / 0.1 * (cotangent[one] * (changed - images[one])).sum()
    assert policy.selection_logits.grad is not None
    assert policy.application_logits.grad is not None
    torch.testing.assert_close(policy.selection_logits.grad[0], selection)
    torch.testing.assert_close(policy.application_logits.grad[0], application)


def test_magnitude_gradient_equals_central_differences_through_both_stages() -> None:
    policy = Policy(operations=["Rotate", "Brightness", "ShearX", "Sharpness", "Color"]).double()
    generator = torch.Generator().manual_seed(0)
    images = 0.2 + 0.6 * torch.rand(10, 3, 6, 7, generator=generator, dtype=torch.float64)
    cotangent = torch.randn(images.shape, generator=generator, dtype=torch.float64)

    def objective() -> Tensor:
        draw = policy.sample(images, torch.Generator().manual_seed(2), relaxed=True)
        return (policy.augment(images, draw) * cotangent).sum()

    (gradient,) = torch.autograd.grad(objective(), policy.magnitude_logits)
    assert (gradient != 0).any(1).all()
    for index in [(0, 0), (0, 3), (1, 1), (1, 2), (1, 4)]:
        values = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                policy.magnitude_logits[index] += step
                values.append(objective())
                policy.magnitude_logits[index] -= step
        torch.testing.assert_close(gradient[index], (values[0] - values[1]) / 2e-6, rtol=1e-5, atol=1e-6)


def test_log_probability_of_a_draw() -> None:
    """It sums to one over everything that can be drawn, and agrees with torch.distributions."""
    policy = uneven()
    images = torch.empty(32, 3, 1, 1)
    draw = policy.sample(images)
    log_probability = policy.log_prob(draw)
    assert log_probability.shape == (32,)
    expected = torch.zeros(32)
    for stage in range(2):
        categorical = torch.distributions.Categorical(logits=policy.selection_logits[stage])
        bernoulli = torch.distributions.Bernoulli(logits=policy.application_logits[stage][draw.choice[stage]])
        expected = expected + categorical.log_prob(draw.choice[stage]) + bernoulli.log_prob(draw.applied[stage].float())
    torch.testing.assert_close(log_probability, expected)
    assert torch.autograd.grad(log_probability.sum(), policy.selection_logits)[0].abs().sum() > 0

    choices = torch.cartesian_prod(torch.arange(14), torch.arange(2), torch.arange(14), torch.arange(2)).T
    ones = torch.ones(2, choices.shape[1])
    every = Draw(choices[[0, 2]], choices[[1, 3]].bool(), ones, ones)
    torch.testing.assert_close(policy.log_prob(every).exp().sum(), torch.tensor(1.0))


def test_log_probability_of_what_an_image_goes_through() -> None:
    """The sum over all draws that do the same to it."""
    policy = uneven(stages=1)
    choices = torch.cartesian_prod(torch.arange(14), torch.arange(2)).T
    ones = torch.ones(1, choices.shape[1])
    every = Draw(choices[:1], choices[1:].bool(), ones, ones)
    probability, effect = policy.log_prob(every).exp(), policy.effect_log_prob(every).exp()
    applied = every.applied[0]
    torch.testing.assert_close(effect[applied], probability[applied])
    torch.testing.assert_close(effect[~applied], probability[~applied].sum().expand(14))
    gradient = torch.autograd.grad(effect[~applied].log().sum(), policy.selection_logits)[0]
    likely = policy.application < policy.application.mean()  # to be skipped
    assert gradient[likely].mean() > gradient[~likely].mean()
    two = uneven()
    draw = two.sample(torch.empty(50, 3, 1, 1))
    both = draw.applied.all(0)
    torch.testing.assert_close(two.effect_log_prob(draw)[both], two.log_prob(draw)[both])
    assert (two.effect_log_prob(draw) >= two.log_prob(draw) - 1e-6).all()


def test_a_state_belongs_to_its_operations() -> None:
    state = Policy(limits={"Rotate": 5}).state_dict()
    Policy(limits={"Rotate": 5}).load_state_dict(state)
    for other in (Policy(), Policy(operations=PAPER[::-1], limits={"Rotate": 5})):
        with pytest.raises(ValueError, match="operations"):
            other.load_state_dict(state)


def test_a_half_precision_policy_keeps_its_probabilities(crops: Tensor) -> None:
    policy = uneven()
    half = copy.deepcopy(policy).bfloat16()
    draw = half.sample(torch.empty(20_000, 1, 1, 1))
    assert draw.magnitude.dtype == torch.float32
    counts = torch.bincount(draw.choice[0], minlength=14) / 20_000
    torch.testing.assert_close(counts, policy.selection[0].detach(), rtol=0, atol=0.02)
    assert half(crops).dtype == torch.uint8


def test_spec_and_back() -> None:
    policy = uneven()
    again = Policy.from_spec(policy.spec())
    torch.testing.assert_close(law(again), law(policy), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(again.spec().tensors(), policy.spec().tensors(), rtol=5e-6, atol=1e-6)
    filled = Policy(fill=(0.1, 0.2, 0.3), stages=3)
    other = Policy.from_spec(filled.spec(), seed=7, temperature=0.3)
    assert (other.fill, other.stages, other.seed, other.temperature) == ((0.1, 0.2, 0.3), 3, 7, 0.3)
    certain = Policy.from_spec(RandAugment(n=1, m=1.0).spec())  # probabilities and magnitudes of 1
    assert all(torch.isfinite(parameter).all() for parameter in certain.parameters())
    assert certain.application.min() > 0.999


def test_images_and_draws_that_do_not_fit_are_refused() -> None:
    policy, images = Policy(), torch.rand(4, 3, 5, 5)
    draw = policy.sample(images)
    with pytest.raises(ValueError, match="4 images"):
        policy.augment(images[:3], draw)
    with pytest.raises(ValueError, match="uint8"):
        policy.augment((images * 255).to(torch.uint8), policy.sample(images, relaxed=True))
    with torch.no_grad():
        assert not policy.sample(images, relaxed=True).magnitude.requires_grad
    nan = dataclasses.replace(draw, magnitude=draw.magnitude * torch.nan)
    colour = Policy(fill=(0.1, 0.2, 0.3))
    for call in (
        lambda: policy.augment(images * 3, draw),
        lambda: policy(images * 3),
        lambda: policy.augment(images, nan),
        lambda: colour(images[:, :1]),
    ):
        with pytest.raises(ValueError, match="got"):
            call()
    with pytest.raises(TypeError):
        policy([[1.0]])
    with torch.no_grad():
        policy.magnitude_logits[0, 2] = torch.nan
    with pytest.raises(ValueError, match="magnitude_logits"):
        policy(images)
