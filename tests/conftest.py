import os

import hypothesis
import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor

if not torch.cuda.is_available():  # read by Triton as kernels are defined
    os.environ["TRITON_INTERPRET"] = "1"
# A busy machine is no error.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")
# The tests run in as many processes as there are cores; so does what they start.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # else it asks the network for its newest version as it is imported
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def photographs() -> list[Tensor]:
    """scikit-learn's two sample photographs, uint8 [3, 427, 640]."""
    return [torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous() for image in load_sample_images().images]


@pytest.fixture(scope="session")
def crops(photographs: list[Tensor]) -> Tensor:
    """Sixteen different 32 × 40 pieces of the photographs, uint8."""
    corners = [(40 * i + 10, 60 * j + 20) for i in range(2) for j in range(4)]
    return torch.stack([photo[:, y : y + 32, x : x + 40] for photo in photographs for y, x in corners])
