"""Try an outer step with many small models of torchvision and timm, one or more of each family.

    python benchmarks/architectures.py [--jobs 2] [MODEL ...]

Every model takes an outer step with the default settings, and one with the settings of the paper. Images are noise, of
the smallest size in `SIZES` that the model can take. The result says by which kind of derivative each step went.
`docs/models.md` has the table.
"""

import argparse
import json
import multiprocessing
import warnings
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from madao import Policy
from madao.errors import ModelError
from madao.hypergrad import Neumann, Relaxed
from madao.hypergrad.autodiff.fallback import Fallback
from madao.models import build
from madao.outer import ComputeOptions, PolicyOptimizer

OUTPUT = Path(__file__).parent / "results" / "architectures.json"

SIZES = (32, 64, 128, 224, 240, 256)

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {"estimator": Relaxed(), "solver": Neumann(steps=2, scale=1e-3)},
}

_TORCHVISION = """
densenet121 efficientnet_b0 mnasnet0_5 mobilenet_v2 mobilenet_v3_large
mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5 squeezenet1_1 swin_t
swin_v2_t
"""

_TIMM = """
lcnet_035 mobilenetv2_035 starnet_s050 mobilenetv3_small_050 lcnet_050 mobilenetv4_conv_small_035 mnasnet_small
tinynet_e semnasnet_050 dla46x_c mobilevit_xxs tf_mobilenetv3_small_075 repghostnet_050 mobilevitv2_050
edgenext_xx_small ghostnet_050 ese_vovnet19b_slim_dw convnext_zepto_rms ghostnetv3_050 efficientvit_b0 efficientvit_m0
regnetx_002 tf_mixnet_s mixnet_s fasternet_t0 iformer_t cs3darknet_focus_s regnety_002 mobilenet_edgetpu_100
lcnetv2_small xcit_nano_12_p8_224 swiftformer_xs spnasnet_100 inception_next_atto mobilenetv1_100 efficientformerv2_s0
fastvit_t8 tf_efficientnet_lite0 efficientnet_lite0 convnext_atto convnextv2_atto pvt_v2_b0 rexnet_100 mobileone_s1
fbnetc_100 rexnetr_100 hardcorenas_a ghostnet_100 hgnetv2_b0 pit_ti_224 repvit_m1 ghostnetv2_100 cpubone_nano
resnet10t tiny_vit_5m_224 coat_tiny vit_tiny_patch16_dinov3_qkvb eva02_tiny_patch14_224 convit_tiny
vit_tiny_patch16_224 deit_tiny_patch16_224 efficientvim_m1 gmlp_ti16_224 tf_efficientnetv2_b0 shvit_s1 regnetz_005
mambaout_femto gernet_s fbnetv3_b crossvit_tiny_240 densenetblur121d levit_128s maxvit_pico_rw_256 halonet_h1
nf_regnet_b0 repvgg_a0 resnext26ts eca_resnext26ts dpn48b seresnext26ts gcresnext26ts resnest14d bat_resnext26ts
lambda_resnet26t visformer_tiny haloregnetz_b coatnet_pico_rw_224 botnet26t_256 csatv2 hrnet_w18_small resnetv2_18
resnetblur18 legacy_seresnet18 seresnet18 poolformerv2_s12 efficientformer_l1 poolformer_s12 skresnet18 gcvit_xxtiny
cait_xxs24_224 gmixer_12_224 sehalonet33ts sebotnet33ts_256 lowformer_b0 efficientnetv2_rw_t gc_efficientnetv2_rw_t
hgnet_tiny darknet17 ecaresnext26t_32x4d coatnext_nano_rw_224 resmlp_12_224 maxxvit_rmlp_nano_rw_256 nest_tiny
mixer_s16_224 cspresnext50 vovnet39a timm/inception_v3 mvitv2_tiny tnt_s_legacy_patch16_224 twins_svt_small
caformer_s18 volo_d1_224 hiera_tiny_224 sequencer2d_s davit_tiny focalnet_tiny_srf selecsls42 nextvit_small
"""

MODELS = [*_TIMM.split(), *_TORCHVISION.split()]

CLASSES = 3


def built(name: str) -> tuple[nn.Module, int]:
    """Build a model for the smallest images that it can take; return it and their size."""
    for size in SIZES:
        torch.manual_seed(0)
        try:
            return build(name, CLASSES, 3, size), size
        except ModelError as error:
            failure = error
    raise failure


def batch(size: int) -> tuple[Tensor, Tensor]:
    """Return four images of noise and their classes."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(4, 3, size, size, generator=generator), torch.tensor([0, 1, 2, 0])


def outer_step(model: nn.Module, size: int, settings: str) -> str:
    """Take an outer step; return the kind of derivative by which it went."""
    hvp = Fallback(lambda _: None)
    compute = ComputeOptions(hvp=hvp, pathwise_batch=2)
    outer = PolicyOptimizer(Policy(), model, F.cross_entropy, every=1, compute=compute, **SETTINGS[settings])
    gradient, _ = outer.gradient(batch(size), batch(size))
    assert all(part.shape == p.shape for part, p in zip(gradient, outer.policy.parameters(), strict=True))
    return type(hvp.kind).__name__


def outcome(name: str) -> dict[str, Any]:
    """Return a row of the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, size = built(name)
    parameters = round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 1)
    row = {"model": name, "size": size, "parameters": parameters}
    for settings in SETTINGS:
        try:
            row[settings] = outer_step(model, size, settings)
        except Exception as error:  # a model can raise anything, and the others are still to be tried
            row[settings] = f"fails: {type(error).__name__}: {error}".splitlines()[0]
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows in Markdown."""
    lines = ["| model | images | million parameters | default | paper |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {row['model']} | {row['size']} px | {row['parameters']} | {row['default']} | {row['paper']} |"
        for row in sorted(rows, key=lambda row: row["model"].removeprefix("timm/"))
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, help="names of models (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="models at the same time")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    versions = {package.__name__: package.__version__ for package in (torch, torchvision, timm)}
    rows = []
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for row in pool.imap_unordered(outcome, arguments.models):
            rows.append(row)
            print(*row.values(), flush=True)
            arguments.output.write_text(json.dumps({"versions": versions, "models": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
