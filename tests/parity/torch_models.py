# SPDX-License-Identifier: Apache-2.0
"""timm on a CPU build of torch, where locks/parity.txt is installed; else a skip."""

import importlib.util
from typing import Any

import numpy as np
import pytest

if not all(importlib.util.find_spec(name) for name in ("torch", "torchvision", "timm")):
    pytest.skip(
        "needs torch and timm: pip install --no-deps -r locks/parity.txt",
        allow_module_level=True,
    )

import torch

# torchvision's binary parts don't load over a CPU torch, which timm does without; but it registers
# fakes of two of their operators, whose schemas must exist.
for _op in ("nms", "qnms"):
    torch.library.define(
        f"torchvision::{_op}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    )

import timm.layers  # noqa: E402  (after the schemas)
import timm.models  # noqa: E402  (after the schemas)

timm.layers.set_fused_attn(False)  # the fused path rounds otherwise
torch.set_num_threads(1)


def randomise(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Give every weight and statistic a random value that shows a mistake in its use; eval mode."""
    generator = torch.Generator().manual_seed(seed)

    def normal(like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator)

    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not value.is_floating_point():
                continue
            if name.endswith("running_var"):
                value.copy_(normal(value).abs() + 0.5)
            elif value.ndim <= 1 and name.endswith(("weight", "gamma")):
                value.copy_(1 + 0.2 * normal(value))
            elif value.ndim >= 2:
                fan_in = value[0].numel() if "embed" not in name or value.ndim == 4 else 25
                value.copy_(normal(value) * (1.0 / max(fan_in, 1) ** 0.5))
            else:
                value.copy_(0.2 * normal(value))
    return model.eval()


def state(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return the state_dict as numpy arrays."""
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def gradients(model: torch.nn.Module, loss: Any) -> dict[str, np.ndarray]:
    """Return the gradient of `loss` with respect to every parameter, by state_dict name."""
    model.zero_grad()
    loss.backward()
    grads = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        grads[name] = parameter.grad.numpy()
    return grads


__all__ = ["gradients", "randomise", "state", "timm", "torch"]
