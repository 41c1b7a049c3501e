# SPDX-License-Identifier: Apache-2.0
"""Makes vit_jax/weights/published/published.tsv of timm: `python -m tests.parity.published_table`.

A row for each of timm's pretrained models of the networks here, an architecture's default first.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.parity.torch_models import timm
from vit_jax.weights.published import table as published_lib

# Architectures by timm's file; what is left out has layers that are not here.
ARCHITECTURES = {
    "vision_transformer": r"(vit|flexivit|eva|aimv2)_(?!.*(rpn|radio)|(d|p|dp)(wee|little)_).*",
    "eva": r"eva_.*|eva02_(?!.*clip).*|vit_.*_(rope|pe_core|dinov3).*|vit_pe_core_.*",
    "naflexvit": r"naflexvit_.*",
    "vision_transformer_hybrid": r"vit_.*_r(26|50)?_s\d+_.*",
    "deit": r"deit.*",
    "cait": r"cait_.*",
    "convit": r"convit_.*",
    "swin_transformer": r"swin_.*",
    "hiera": r"hiera_.*",
    "mlp_mixer": r"mixer_[sbl]\d+_224",
    "resnetv2": r"resnetv2_(50|101|152)(x\d_bit)?",
    "regnet": r"regnety_.*",
    "resnet": r"resnet(50|101|152)",
    "convnext": r"convnext.*|test_convnext2?",
}


def published() -> dict[str, Any]:
    """Return timm's pretrained_cfg of every tag with weights, an architecture's default first."""
    registry, found = timm.models._registry, {}
    for module, pattern in ARCHITECTURES.items():
        for architecture in sorted(registry._module_to_models[module]):
            known = registry._model_default_cfgs.get(architecture)  # None of a former name
            if known is None or not re.fullmatch(pattern, architecture):
                continue
            for tag in known.tags:  # the default comes first
                if tag and known.cfgs[tag].has_weights:
                    found[f"{architecture}.{tag}"] = known.cfgs[tag]
    return found


def table() -> str:
    """Return what the file holds."""
    rows = published()
    files = Counter(_file(cfg) for cfg in rows.values())
    lines = ["\t".join(published_lib.COLUMNS)]
    for name, cfg in rows.items():
        file = _file(cfg)
        values = [
            name,
            _sides(cfg.input_size),
            _sides(cfg.test_input_size or ()),
            f"{cfg.crop_pct:g}",
            f"{cfg.test_crop_pct:g}" if cfg.test_crop_pct else "",
            cfg.crop_mode,
            cfg.interpolation,
            _numbers(cfg.mean),
            _numbers(cfg.std),
            file if files[file] == 1 else "",
            str(cfg.num_classes),
        ]
        lines.append("\t".join(values))
    return "\n".join(lines) + "\n"


def _sides(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape[1:]))


def _numbers(values: Iterable[float]) -> str:
    return ",".join(f"{value:.9g}" for value in values)


def _file(cfg: Any) -> str:
    """Name the authors' own PyTorch file, where they have one."""
    name = cfg.url.rpartition("/")[2]
    return name if Path(name).suffix in (".pth", ".pt", ".bin", ".safetensors") else ""


if __name__ == "__main__":
    published_lib.TABLE.write_text(table(), "utf-8")
