# SPDX-License-Identifier: Apache-2.0
"""timm's forward pass, in eager PyTorch, at several batch sizes: the other side of a comparison."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import step_timm
from benchmarks.step_ours import random_batch
from benchmarks.turns import Turn, Work, calibrated
from vit_jax.models import ModelConfig


def make(
    model: ModelConfig,
    batch_sizes: Sequence[int],
    seconds: float,
    name: str = "",
    threads: int = 1,
    wait_policy: str = "active",
    mkl: bool = False,
) -> tuple[dict[str, Any], Callable[[int], Turn]]:
    """Build the model in evaluation mode, its weights in the model's dtype; a turn is a batch size.

    Args:
        model: whose forward pass.
        batch_sizes: of the resident uint8 batches.
        seconds: about a turn's least length.
        name: timm's, of a family other than ViT.
        threads, wait_policy, mkl: as in `step_timm.make`.
    """
    torch, device = step_timm.start(threads, wait_policy, mkl)
    net = step_timm.create(model, name).to(device).eval()
    num_params = sum(p.numel() for p in net.parameters())
    dtype = getattr(torch, model.dtype.value)
    net.to(dtype)

    def work(batch_size: int) -> Work:
        image = torch.from_numpy(random_batch(model, batch_size)["image"])
        image = image.permute(0, 3, 1, 2).contiguous().to(device)

        def run(count: int) -> None:
            with torch.inference_mode():
                for _ in range(count):
                    net(((image.float() / 255 - 0.5) / 0.5).to(dtype))
            if device == "cuda":
                torch.cuda.synchronize()

        return run

    facts = {"num_params": num_params}
    return facts, calibrated({size: (size, work(size)) for size in batch_sizes}, seconds)
