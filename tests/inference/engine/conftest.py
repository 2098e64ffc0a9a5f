"""One thread unless a test says otherwise: the models are too small to share out."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
