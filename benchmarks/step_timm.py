# SPDX-License-Identifier: Apache-2.0
"""timm's model of a config, PyTorch with fused AdamW, eager or compiled: a comparison's other side.

The same model, batch and work as step_ours.py: uint8 images to the loss, the gradient, the update.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.record import num_cores
from benchmarks.step_ours import random_batch
from benchmarks.turns import Turn, Work, calibrated
from vit_jax.models import ModelConfig, ViTConfig
from vit_jax.models.base import pair
from vit_jax.models.layers.pool import Pool

# Our variants of other families by timm's names; a ViT is built from its config.
NAMES = {
    "bit_r50x1": "resnetv2_50x1_bit",
    "cait_xxs24": "cait_xxs24_224",
    "convit_ti": "convit_tiny",
    "convnext_t": "convnext_tiny",
    "hiera_t": "hiera_tiny_224",
    "mixer_s16": "mixer_s16_224",
    "r26_vit_s32": "vit_small_r26_s32_224",
    "regnety_400mf": "regnety_004",
    "resnet50": "resnet50",
    "swin_t": "swin_tiny_patch4_window7_224",
}

CONVOLUTIONAL = ("bit_r50x1", "convnext_t", "r26_vit_s32", "regnety_400mf", "resnet50")

# MKL multiplies matrices for PyTorch, and keeps AVX-512 for Intel's processors: a Zen 5 has 107
# GFLOP/s a core as it is installed, and 245 where this function of MKL's says otherwise.
_AS_ON_INTEL = "int mkl_serv_intel_cpu_true(void) { return 1; }"


def create(cfg: ModelConfig, name: str) -> Any:
    """Create timm's model of a name, or without one of a ViT's config (no extras)."""
    import torch  # pyright: ignore[reportMissingImports]

    try:
        import torchvision  # noqa: F401  # pyright: ignore[reportMissingImports]
    except RuntimeError:
        # timm only needs it to import; one whose compiled half is for another build of torch
        # stops at two operators that are not there.
        for module in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        for op in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{op}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
    import timm  # pyright: ignore[reportMissingImports]

    if name:
        # Swin's default drops paths; ours does not here.
        return timm.create_model(name, num_classes=cfg.num_classes, drop_path_rate=0.0)
    assert isinstance(cfg, ViTConfig), "a variant of another family needs a row in NAMES"
    return timm.models.VisionTransformer(
        img_size=pair(cfg.image_size, "image_size"),
        patch_size=pair(cfg.patch, "patch"),
        in_chans=cfg.channels,
        num_classes=cfg.num_classes,
        embed_dim=cfg.dim,
        depth=cfg.depth,
        num_heads=cfg.num_heads,
        mlp_ratio=cfg.mlp_dim / cfg.dim,
        class_token=cfg.class_token,
        global_pool="avg" if cfg.pool is Pool.GAP else "token",
        fc_norm=cfg.fc_norm,
    )


def settings() -> dict[str, dict[str, Any]]:
    """Return what to try on a CPU, by name: which is fastest depends on model and load."""
    cores = num_cores()
    found = {
        f"{cores} threads": {"threads": cores, "wait_policy": "active"},
        f"{cores} threads, passive": {"threads": cores, "wait_policy": "passive"},
        "1 thread": {"threads": 1, "wait_policy": "passive"},
    }
    found = found if cores > 1 else {"1 thread": found["1 thread"]}
    if has_slow_mkl():
        found |= {f"{key}, MKL as on Intel": each | {"mkl": True} for key, each in found.items()}
    return found


def has_slow_mkl() -> bool:
    """Return whether MKL does not use all of this processor, and a compiler can change that."""
    info = Path("/proc/cpuinfo")
    listed = info.read_text() if info.exists() else ""
    other = "avx512f" in listed and "GenuineIntel" not in listed
    return other and shutil.which("cc") is not None


def start(threads: int, wait_policy: str, mkl: bool = False) -> tuple[Any, str]:
    """Import PyTorch, threads and MKL as a setting says; returns it and the device."""
    if wait_policy == "passive":  # "active" spelled out would spin for longer than the default
        os.environ["OMP_WAIT_POLICY"] = wait_policy  # read when OpenMP is loaded, with torch
    if mkl:  # what is found first, before torch brings its own
        with tempfile.TemporaryDirectory() as folder:
            library = f"{folder}/as_on_intel.so"
            command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
            subprocess.run(command, input=_AS_ON_INTEL, text=True, check=True)
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    import torch  # pyright: ignore[reportMissingImports]

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(threads)
    else:  # what JAX does by default too
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    return torch, device


def frozen(net: Any) -> Any:
    """Compile a network for inference, its weights made part of the program."""
    import torch  # pyright: ignore[reportMissingImports]
    import torch._inductor.config as inductor  # pyright: ignore[reportMissingImports]

    inductor.freezing = True
    return torch.compile(net)


def make(
    model: ModelConfig,
    batch_size: int,
    steps: int,
    seconds: float,
    name: str = "",
    threads: int = 1,
    wait_policy: str = "active",
    mkl: bool = False,
    compiled: bool = False,
    channels_last: bool = False,
) -> tuple[dict[str, Any], Callable[[str], Turn]]:
    """Build model and optimizer; a turn is "train" or "forward".

    Args:
        model: what to train.
        batch_size: images a step.
        steps: a turn's least number of steps.
        seconds: about a turn's least length.
        name: timm's, of a family other than ViT.
        threads: of PyTorch on a CPU.
        wait_policy: "active": waiting threads spin, OpenMP's default; "passive": they sleep.
        mkl: with the kernels that MKL has for Intel's processors.
        compiled: by `torch.compile`.
        channels_last: convolutions' layout.
    """
    torch, device = start(threads, wait_policy, mkl)
    net = create(model, name).to(device)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    net = net.to(memory_format=layout)
    num_params = sum(p.numel() for p in net.parameters())
    net = torch.compile(net) if compiled else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    arrays = random_batch(model, batch_size)
    pixels = (
        torch.from_numpy(arrays["image"])
        .permute(0, 3, 1, 2)
        .contiguous(memory_format=layout)
        .to(device)
    )
    label = torch.from_numpy(arrays["label"]).long().to(device)

    def logits() -> Any:
        half = model.dtype.value == "bfloat16"
        cast = torch.autocast(device, torch.bfloat16) if half else contextlib.nullcontext()
        with cast:
            return net((pixels.float() / 255 - 0.5) / 0.5)

    def once(train: bool) -> None:
        if train:
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(logits().float(), label).backward()
            optimizer.step()
        else:
            with torch.inference_mode():
                logits()

    def work(train: bool) -> Work:
        def run(count: int) -> None:
            net.train(train)
            for _ in range(count):
                once(train)
            if device == "cuda":
                torch.cuda.synchronize()

        return run

    works = {name: (batch_size, work(name == "train")) for name in ("train", "forward")}
    return {"num_params": num_params}, calibrated(works, seconds, steps)
