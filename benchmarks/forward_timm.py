# SPDX-License-Identifier: Apache-2.0
"""timm's forward pass, eager or compiled, at several batch sizes: a comparison's other side."""

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
    compiled: bool = False,
    channels_last: bool = False,
    autocast: bool = False,
    mkl: bool = False,
) -> tuple[dict[str, Any], Callable[[int], Turn]]:
    """Build the model in evaluation mode; a turn is a batch size.

    Args:
        model: whose forward pass.
        batch_sizes: of the resident uint8 batches.
        seconds: about a turn's least length.
        name: timm's, of a family other than ViT.
        threads, wait_policy, mkl, compiled, channels_last: as in `step_timm.make`.
        autocast: weights stay float32 and PyTorch casts them; else they are in the model's dtype.
    """
    torch, device = step_timm.start(threads, wait_policy, mkl)
    net = step_timm.create(model, name).to(device).eval()
    num_params = sum(p.numel() for p in net.parameters())
    dtype = getattr(torch, model.dtype.value)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    net.to(memory_format=layout)
    if not autocast:
        net.to(dtype)
    net = step_timm.frozen(net) if compiled else net

    def once(image: Any) -> None:
        pixels = (image.float() / 255 - 0.5) / 0.5
        if autocast:
            with torch.autocast(device, dtype):
                net(pixels)
        else:
            net(pixels.to(dtype))

    def work(batch_size: int) -> Work:
        image = torch.from_numpy(random_batch(model, batch_size)["image"])
        image = image.permute(0, 3, 1, 2).contiguous(memory_format=layout).to(device)

        def run(count: int) -> None:
            with torch.inference_mode():
                for _ in range(count):
                    once(image)
            if device == "cuda":
                torch.cuda.synchronize()

        return run

    facts = {"num_params": num_params}
    return facts, calibrated({size: (size, work(size)) for size in batch_sizes}, seconds)
