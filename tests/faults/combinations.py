# SPDX-License-Identifier: Apache-2.0
"""Runs of drawn combinations of options, each stopped or killed and continued, and on four devices.

    python -m tests.faults.combinations --count=60 [--first=0]

A number draws a model, an objective, an optimizer, data and so on out of what a config can hold; a
draw that the project's own checks refuse is drawn again. The run is killed (SIGKILL, in a process
of its own) or told to stop (SIGTERM) at a drawn step, and the same call continues it. Exit status
0: the last state and every line of the metrics equal the undisturbed run's to the bit, and the
losses of the first steps on four devices agree within 1e-4 of their value, with bfloat16 5e-2.
"""

import argparse
import dataclasses
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np  # isort: skip
from safetensors.numpy import save_file  # isort: skip

from tests import photos, shards
from tests.faults.soak import metrics
from tests.unit.models.tiny import TINY
from tests.unit.weights.runs import make_state
from vit_jax import config as config_lib
from vit_jax import weights
from vit_jax.checkpoints import CheckpointConfig, reader
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, MixConfig, TransformConfig, open_source
from vit_jax.devices.sharding import MeshConfig
from vit_jax.distill import Distillation, TeacherConfig
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval, FewShotEval, KNNEval, LossEval
from vit_jax.models import DType, Remat, patch_sizes
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.models.lora import LoraConfig
from vit_jax.objectives import (
    DinoConfig,
    DistillConfig,
    MaeConfig,
    MaskedPatchConfig,
    SupervisedConfig,
)
from vit_jax.objectives.dino_config import Balance, HeadConfig
from vit_jax.optim import MomentDtype, OptimConfig, Optimizer, Schedule
from vit_jax.process.preemption import INTERRUPTED
from vit_jax.train.loop import fit
from vit_jax.weights.config import InitConfig

ROOT = Path(__file__).parents[2]
STEPS = 5
CLASSES = ("flower", "house", "other")
POLICIES = ("", "", "randaug(1,5)", "rand-m5-mstd0.5-inc1", "3-augment", "autoaugment(cifar10)")
OBJECTIVES = ("mae", "masked", "dino", "distill", "supervised", "supervised", "supervised")
KINDS = ("digits", "folder", "csv", "tar", "parquet")


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A run, at which step it is disturbed, and how."""

    cfg: Config
    step: int
    fault: signal.Signals


def prepare(scratch: Path) -> None:
    """Write datasets of each kind, and weights to start from and to learn from."""
    photos.write_folder(scratch / "folder", {"train": 8, "val": 3}, CLASSES, side=16)
    for split in ("train", "val"):
        source = open_source(f"folder:{scratch}/folder", split)
        shards.as_tars(source, scratch / "tar", split, 2)
        shards.as_parquet(source, scratch / "parquet", split, 2)
    rows = [
        f"folder/{split}/{name}/{file.name},{name},{split}"
        for split in ("train", "val")
        for name in CLASSES
        for file in sorted((scratch / "folder" / split / name).iterdir())
    ]
    (scratch / "table.csv").write_text("\n".join(["path,label,split", *rows, ""]))
    for name, cfg in {"colour": _vit(3, 3), "grey": _vit(1, 10)}.items():
        state = make_state(cfg, 0)
        tree = {"params": state.params, **(state.model_state or {})}
        small = {k: v * np.float32(0.1) for k, v in weights.to_timm(tree, cfg).items() if v.ndim}
        save_file(weights.to_timm(tree, cfg) | small, scratch / f"{name}.safetensors")


def _vit(channels: int, num_classes: int) -> Any:
    fields = {"channels": channels, "num_classes": num_classes, "image_size": (8, 8)}
    return dataclasses.replace(TINY["vit"], **fields)


def _weights(scratch: Path, channels: int) -> str:
    return f"timm:{scratch}/{'colour' if channels == 3 else 'grey'}.safetensors"


def draw(number: int, scratch: Path) -> Drawn:
    """Return what a number stands for; every field is one that a run may have."""
    for attempt in range(200):
        rng = random.Random(f"{number}.{attempt}")
        cfg = _config(rng, scratch, number)
        try:
            config_lib.check(cfg)
        except UserError:
            continue
        fault = signal.SIGKILL if number % 4 == 3 else signal.SIGTERM
        return Drawn(cfg, rng.randrange(1, STEPS), fault)
    raise AssertionError(f"number {number}: no draw passes the checks")


def _config(rng: random.Random, scratch: Path, number: int) -> Config:
    """Draw a config, which may not pass the checks; some fields take turns with the numbers."""
    kind, objective = KINDS[number % len(KINDS)], OBJECTIVES[number % len(OBJECTIVES)]
    name = {
        "digits": "digits",
        "folder": f"folder:{scratch}/folder",
        "csv": f"csv:{scratch}/table.csv",
        "tar": f"tar:{scratch}/tar/mine-{{train,val}}-*.tar",
        "parquet": f"parquet:{scratch}/parquet/*.parquet",
    }[kind]
    on = lambda share=0.3: rng.random() < share  # noqa: E731
    model = _model(rng, objective, number, channels=1 if kind == "digits" else 3)
    data = DataConfig(
        name=name,
        train_split="train[:64]" if kind == "digits" else "train",
        batch_size=8,
        transform=_transform(rng),
        num_threads=rng.choice([0, 1, 3]),
        num_workers=rng.choice([0, 0, 0, 0, 1]),
        prefetch=rng.choice([1, 2]),
        cache=on(),
        repeats=rng.choice([1, 1, 2]),
        balance=rng.choice([0.0, 0.0, 0.5, 1.0]),
        erasing_prob=rng.choice([0.0, 0.25]),
    )
    if objective in ("supervised", "distill") and on(0.4):
        data.mix = MixConfig(
            mixup_alpha=0.8, cutmix_alpha=rng.choice([0.0, 1.0]), per_example=on(0.5)
        )
    cfg = Config(
        model=model,
        data=data,
        optim=_optimizer(rng, list(Optimizer)[(number + number // 7) % len(Optimizer)]),
        objective=_objective(rng, objective, scratch, model),
        duration=f"{STEPS} steps",
        accum_steps=rng.choice([1, 1, 2]),
        ema_decay=0.9 if objective == "dino" or on() else 0.0,
        checkpoint=CheckpointConfig(
            every=rng.choice(["1 steps", "2 steps"]), keep=rng.choice([2, 3]), keep_best=0
        ),
        log=LogConfig(every="1 steps", tensorboard=False),
        evals=_evals(rng, objective, "test" if kind == "digits" else "val"),
        seed=rng.randrange(100),
    )
    if cfg.ema_decay and on():
        cfg.ema_decay_end = 1.0
    if objective == "supervised" and model == _plain(model):
        cfg.init = InitConfig(weights=_weights(scratch, model.channels))
        if on(0.5):
            cfg.lora = LoraConfig(pattern="attn/(qkv|proj)", rank=2)
        elif on(0.5):
            cfg.optim.freeze = "^(patch_embed|pos_embed)"
    return cfg


def _plain(model: Any) -> Any:
    """Return the plain ViT that there are weights of, with what does not change its parameters."""
    plain = _vit(model.channels, 10 if model.channels == 1 else 3)
    if type(model) is not type(plain):
        return None
    same = ("dtype", "remat", "scan_unroll", "dropout_rate", "drop_path_rate")
    return dataclasses.replace(plain, **{name: getattr(model, name) for name in same})


def _model(rng: random.Random, objective: str, number: int, channels: int) -> Any:
    turn = number // len(OBJECTIVES) * 3 + number % len(OBJECTIVES)
    families = [name for other in list(TINY)[2:] for name in ("vit", other)]
    cfg = TINY[families[turn % len(families)] if objective == "supervised" else "vit"]
    if objective == "distill" and rng.random() < 0.5:
        cfg = TINY["deit"]
    fields: dict[str, Any] = {
        "channels": channels,
        "num_classes": 10 if channels == 1 else 3,
        "dtype": rng.choice([DType.FLOAT32, DType.FLOAT32, DType.BFLOAT16]),
        "remat": rng.choice([*Remat, Remat.NONE]),
        "scan_unroll": rng.choice([0, 1, 2]),
    }
    names = {field.name for field in dataclasses.fields(cfg)}
    for field, values in {"dropout_rate": (0.0, 0.1), "drop_path_rate": (0.0, 0.2)}.items():
        if field in names:
            fields[field] = rng.choice(values)
    if type(cfg) is type(TINY["vit"]) and objective != "distill" and rng.random() < 0.7:
        options = [
            {"pos_embed": PosEmbed.SINCOS2D},
            {"num_registers": 2},
            {"layer_scale": 0.1},
            {"qk_norm": True},
            {"token_merging": 1},
            {"patch_drop_rate": 0.25},
            {"base_patch": (8,), "base_grid": (2,), "drawn_patches": (2, 4)},
        ]
        fields |= options[turn // 2 % len(options)]
    if objective in ("mae", "masked", "dino"):
        fields |= {"num_classes": 0, "image_size": (16, 16)}
        if objective == "mae":
            fields["pos_embed"] = PosEmbed.SINCOS2D_MAE
    return dataclasses.replace(cfg, **fields)


def _transform(rng: random.Random) -> TransformConfig:
    return TransformConfig(
        crop=rng.choice([Crop.RESIZE, Crop.CENTER, Crop.INCEPTION]),
        flip=rng.random() < 0.5,
        degrees=rng.choice([0.0, 10.0]),
        auto_augment=rng.choice(POLICIES),
        color_jitter=rng.choice([0.0, 0.3]),
    )


def _optimizer(rng: random.Random, name: Optimizer) -> OptimConfig:
    return OptimConfig(
        name=name,
        lr=1e-3,
        schedule=rng.choice([Schedule.COSINE, Schedule.LINEAR, Schedule.CONSTANT]),
        warmup=rng.choice(["", "2 steps"]),
        weight_decay=rng.choice([0.0, 0.1]),
        clip_norm=rng.choice([0.0, 1.0]),
        layer_decay=rng.choice([1.0, 1.0, 0.8]),
        sam_rho=rng.choice([0.0, 0.0, 0.0, 0.05]),
        mu_dtype=rng.choice(list(MomentDtype)),
    )


def _objective(rng: random.Random, kind: str, scratch: Path, model: Any) -> Any:
    if kind == "mae":
        return MaeConfig(decoder_dim=8, decoder_depth=1, decoder_heads=2)
    if kind == "masked":
        return MaskedPatchConfig()
    if kind == "dino":
        head = HeadConfig(prototypes=16, hidden_dim=16, bottleneck_dim=8)
        return DinoConfig(
            head=head,
            patch_head=head,
            small_crops=rng.choice([0, 2]),
            small_size=(8, 8),
            temperature_warmup="2 steps",
            balance=rng.choice(list(Balance)),
            patch_weight=rng.choice([0.0, 1.0]),
        )
    smoothing = rng.choice([0.0, 0.1])
    if kind == "distill":
        teacher = _vit(model.channels, model.num_classes)
        found = TeacherConfig(
            kind=rng.choice(list(Distillation)),
            teacher=dataclasses.replace(teacher, image_size=model.image_size),
            weights=_weights(scratch, model.channels),
        )
        return DistillConfig(label_smoothing=smoothing, distill=found)
    return SupervisedConfig(label_smoothing=smoothing)


def _evals(rng: random.Random, objective: str, name: str) -> dict[str, Any]:
    split: dict[str, Any] = {"split": f"{name}[:9]" if name == "test" else name, "batch_size": 8}
    split["transform"], every = TransformConfig(crop=Crop.RESIZE), rng.choice(["2 steps", ""])
    own: dict[str, Any] = {"val": ClassifyEval(every=every, **split)}
    if objective in ("mae", "masked"):
        own = {"val": LossEval(every=every, **split)}
    elif objective == "dino" or rng.random() < 0.15:
        own = {"near": KNNEval(k=(3,), every=every, **split)}
    elif rng.random() < 0.15:
        own = {"few": FewShotEval(shots=(1,), seeds=1, **split)}
    for each in own.values():
        if isinstance(each, KNNEval | FewShotEval):
            each.train_split = "train[:24]"
    return own


def disturbed(step: int, fault: signal.Signals) -> Any:
    """Return a context in which the process gets a signal as it begins a step."""
    plain: Callable[..., int] = patch_sizes.drawn

    def drawn(model: Any, seed: int, number: int) -> int:
        if number == step:
            os.kill(os.getpid(), fault)
        return plain(model, seed, number)

    return mock.patch.object(patch_sizes, "drawn", drawn)


def _fit(cfg: Config, workdir: Path, devices: int) -> int:
    return fit(dataclasses.replace(cfg, mesh=MeshConfig(data=devices)), workdir).status


def _end(workdir: Path) -> tuple[Any, Any]:
    """Return the digest of every leaf of the last state, and the metrics."""
    saved = reader.find(workdir, "latest")
    assert saved.step == STEPS, saved.step
    return saved.manifest.leaves, metrics(workdir)


def check(number: int, scratch: Path) -> None:
    """Run a combination in three ways; raises AssertionError where they differ."""
    drawn, place = draw(number, scratch), scratch / str(number)
    assert _fit(drawn.cfg, place / "straight", 1) == 0
    broken = place / "broken"
    if drawn.fault is signal.SIGKILL:
        command = [sys.executable, "-m", "tests.faults.combinations"]
        command += [f"--disturbed={number}", f"--scratch={scratch}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == -signal.SIGKILL, done.stdout[-2000:] + done.stderr[-2000:]
    else:
        with disturbed(drawn.step, drawn.fault):
            assert _fit(drawn.cfg, broken, 1) == INTERRUPTED
    assert _fit(drawn.cfg, broken, 1) == 0
    want, got = _end(place / "straight"), _end(broken)
    assert got[0] == want[0], f"other state: {_differing(*got[:1], *want[:1])}"
    assert got[1] == want[1], f"other metrics: {got[1]} instead of {want[1]}"
    assert _fit(drawn.cfg, place / "four", 4) == 0
    tolerance = 5e-2 if drawn.cfg.model.dtype is DType.BFLOAT16 else 1e-4
    one, four = (_losses(place / name) for name in ("straight", "four"))
    for step in range(1, 3):  # rounding grows with every step after these
        assert math.isclose(one[step], four[step], rel_tol=tolerance), (step, one, four)


def _differing(got: dict[str, Any], want: dict[str, Any]) -> list[str]:
    return [name for name in {**got, **want} if got.get(name) != want.get(name)]


def _losses(workdir: Path) -> dict[int, float]:
    rows = [row for row in metrics(workdir) if "train/loss" in row]
    return {int(str(row["step"])): float(str(row["train/loss"])) for row in rows}


def main() -> None:
    """Check as many combinations as asked for, and say which differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--disturbed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.disturbed is not None:
        drawn = draw(asked.disturbed, asked.scratch)
        with disturbed(drawn.step, drawn.fault):
            _fit(drawn.cfg, asked.scratch / str(asked.disturbed) / "broken", 1)
        return
    failed = []
    with tempfile.TemporaryDirectory(prefix="combinations") as scratch:
        prepare(Path(scratch))
        for number in range(asked.first, asked.first + asked.count):
            began = time.monotonic()
            try:
                check(number, Path(scratch))
                outcome = "equal"
            except Exception:  # the others are wanted too
                failed.append(number)
                outcome = f"FAILED\n{draw(number, Path(scratch)).cfg}\n{traceback.format_exc()}"
            print(f"{number}: {outcome} ({time.monotonic() - began:.0f} s)", flush=True)
    if failed:
        sys.exit(f"{len(failed)} of {asked.count} differ: {failed}")
    print(f"{asked.count} combinations: continued equal to the bit; on four devices alike")


if __name__ == "__main__":
    main()
