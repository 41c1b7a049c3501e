# SPDX-License-Identifier: Apache-2.0
"""Every config file builds and is what its name says; shrunk, each kind of run trains two steps."""

import dataclasses
import functools
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.refusals import refused_by
from tests.unit.models.tiny import SHRINK
from tests.unit.models.tiny import shrink as shrink_model
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.cli.parsing import flags
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval, KNNEval, SegmentationEval
from vit_jax.models import ConvNeXtConfig, RegNetConfig
from vit_jax.objectives import (
    ContrastiveConfig,
    DepthConfig,
    DepthHead,
    DinoConfig,
    DistillConfig,
    EomtConfig,
    IJepaConfig,
    LeJepaConfig,
    MaeConfig,
)
from vit_jax.optim import Schedule

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(p for p in CONFIGS.glob("*.py") if p.stem != "__init__")
# Of AugReg's grid, each value of each axis once; the other files' arguments are in their RUNS.
ARGUMENTS = {
    "augreg_imagenet": [
        *(f"{name},medium1,0.1,0.0" for name in ("vit_ti16", "vit_s32", "vit_b32", "vit_b16")),
        *(f"{name},light1,0.03,0.0" for name in ("vit_b8", "vit_l16", "r_vit_ti16")),
        *(f"{name},light2,0.1,0.1" for name in ("r26_vit_s32", "r50_vit_l32")),
        *(f"vit_s16,{name},0.03,0.1" for name in ("none", "medium2", "strong1", "strong2")),
    ],
}


def load(path: Path, arg: str = "") -> Config:
    return _module(path).get_config(*[arg] if arg else [])


def arguments(path: Path) -> list[str]:
    """The arguments that a file says it takes."""
    return list(getattr(_module(path), "RUNS", ()))


@functools.cache
def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUNS = [
    (path, arg) for path in FILES for arg in arguments(path) or ["", *ARGUMENTS.get(path.stem, ())]
]


def shrink(cfg: Config) -> Config:
    """Keep every choice of the recipe; cut its sizes."""
    digits = cfg.data.name == "digits"
    num_classes = len(cfg.data.classes) or (10 if digits else 3)
    native = cfg.model.image_size
    stages: dict[str, Any] = {}
    if isinstance(cfg.model, ConvNeXtConfig) and cfg.init.weights:  # four stages, as timm's
        stages = {"depths": (1,) * 4, "widths": (8, 8, 16, 16), "image_size": (32, 32)}
        cfg.optim.lr_multipliers = cfg.optim.lr_multipliers[:4]
    classes = num_classes if cfg.objective.uses_labels else 0
    cfg.model = shrink_model(cfg.model, num_classes=classes, **stages)
    if isinstance(cfg.objective, MaeConfig):
        cfg.objective.decoder_dim, cfg.objective.decoder_depth = 16, 1
        cfg.objective.decoder_heads = 2
    if isinstance(cfg.objective, ContrastiveConfig):
        _shrink_contrastive(cfg)
    if isinstance(cfg.objective, DepthConfig):
        _shrink_depth(cfg)
    if isinstance(cfg.objective, DinoConfig):
        _shrink_dino(cfg)
    if isinstance(cfg.objective, LeJepaConfig):
        cfg.objective.hidden_dim, cfg.objective.dim, cfg.objective.directions = 16, 8, 8
        cfg.objective.small_size = _half(cfg) if cfg.objective.small_crops else (96, 96)
    if isinstance(cfg.objective, IJepaConfig):
        cfg.objective.predictor_dim, cfg.objective.predictor_depth = 16, 1
        cfg.objective.predictor_heads = 2
    if isinstance(cfg.objective, EomtConfig):
        _shrink_eomt(cfg)
    cfg.objective = cfg.objective.with_classes(3)  # of tests/dense_sets.py
    if isinstance(cfg.objective, DistillConfig):
        teacher = cfg.objective.distill.teacher
        same_size = teacher.image_size == native
        fields: dict[str, Any] = {"image_size": cfg.model.image_size} if same_size else {}
        if isinstance(teacher, RegNetConfig):
            fields["depth"] = 6  # so that it has four stages, as timm's
        cfg.objective.distill.teacher = shrink_model(teacher, num_classes=num_classes, **fields)
    if not digits:
        for ev in cfg.evals.values():
            ev.split = re.sub(r"\d+%", "80%", ev.split.replace("51200", "4"))
            ev.split = re.sub("validation|test", "val", ev.split)
            ev.every = "2 steps"
        cfg.data.name = cfg.objective.pixel_target or "folder"
        cfg.data.train_split = cfg.data.train_split.replace("51200", "4")
    cfg.data.batch_size, cfg.accum_steps, cfg.duration = 8, 1, "2 steps"
    cfg.optim.warmup = "1 steps"
    cfg.optim.schedule_every = "1 steps" if cfg.optim.schedule_every else ""
    cfg.optim.cooldown = "1 steps" if cfg.optim.cooldown else ""
    if cfg.optim.schedule is Schedule.STEP:
        cfg.optim.milestones = ("1 steps",)
    cfg.log.every, cfg.log.tensorboard = "1 steps", False
    for ev in cfg.evals.values():
        ev.patch = cfg.model.patch[0] if ev.patch else 0
        if isinstance(ev, ClassifyEval):
            ev.report = False
        if isinstance(ev, SegmentationEval):
            ev.stride = 0
        if isinstance(ev, KNNEval):
            ev.k, ev.train_split = (2,), "train"
            cfg.checkpoint.metric = re.sub(r"knn\d+", "knn2", cfg.checkpoint.metric)
    if cfg.data.transform.lengths:
        cfg.data.transform.lengths, cfg.data.pack = (16,), min(cfg.data.pack, 4)
        for ev in cfg.evals.values():
            ev.transform.lengths = (16,)
    cfg.mesh.data = 1  # what is tested here is the recipe, not the layout
    cfg.data.num_workers = 0
    return cfg


def _shrink_contrastive(cfg: Config) -> None:
    """Cut the text tower to the tokens of tests/captioned.py, and measure on its images."""
    sizes = {"dim": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32, "context": 16}
    text = dataclasses.replace(cfg.objective.text, vocab_size=300, **sizes)
    cfg.objective = dataclasses.replace(cfg.objective, text=text, dim=16)
    for ev in cfg.evals.values():
        ev.dataset, ev.batch_size = "", 0


def _shrink_depth(cfg: Config) -> None:
    """Cut the head to an encoder of four layers, and measure all of images of any size."""
    if cfg.objective.head is DepthHead.DPT:
        cfg.model = dataclasses.replace(cfg.model, depth=4)
        small = {"taps": (0, 1, 2, 3), "widths": (4, 4, 8, 8), "dim": 8, "hidden_dim": 4}
        cfg.objective.dpt = dataclasses.replace(cfg.objective.dpt, **small)
    for ev in cfg.evals.values():
        ev.crop, ev.image_size = type(ev)().crop, ()


def _shrink_dino(cfg: Config) -> None:
    """Cut ImageNet's heads, and the small crops to half the side of the large ones."""
    if cfg.objective.head.prototypes <= 256:
        return
    small = {"prototypes": 16, "hidden_dim": 16, "bottleneck_dim": 8}
    cfg.objective.head = dataclasses.replace(cfg.objective.head, **small)
    if not cfg.objective.shared_head:
        cfg.objective.patch_head = dataclasses.replace(cfg.objective.head)
    cfg.objective.small_size = _half(cfg)
    if cfg.objective.gram.weight:
        twice = tuple(2 * side for side in models.input_shape(cfg.model)[:2])
        anchors = {"start": "1 steps", "warmup": "", "every": "1 steps", "size": twice}
        cfg.objective.gram = dataclasses.replace(cfg.objective.gram, **anchors)
    if cfg.objective.temperature_warmup:
        cfg.objective.temperature_warmup = "1 steps"
    if cfg.optim.hold_for:
        cfg.optim.hold_for = "1 steps"


def _shrink_eomt(cfg: Config) -> None:
    """Cut the queries, the points and the blocks, with their times."""
    loss = dataclasses.replace(cfg.objective.loss, points=16)
    times = {"anneal_start": cfg.objective.anneal_start, "anneal_end": cfg.objective.anneal_end}
    cut = {"loss": loss, "queries": 4, "blocks": 1, **{k: x[:1] for k, x in times.items()}}
    cfg.objective = dataclasses.replace(cfg.objective, **cut)
    cfg.optim.late_start, cfg.optim.late_warmup = "1 steps", ""
    # Multipliers that name a block by its number have no block in the cut model.
    kept = [pair for pair in cfg.optim.lr_multipliers if not re.search(r"/\d+/", pair[0])]
    cfg.optim.lr_multipliers = tuple(kept)


def _half(cfg: Config) -> tuple[int, int]:
    """Return the side of half of the patches, one at least."""
    side = models.pair(cfg.model.patch, "patch")[0]
    rows, _ = models.patch_grid(cfg.model, models.input_shape(cfg.model)[:2])
    half = side * max(rows // 2, 1)
    return half, half


# What decides which code a shrunk run takes; crops, mixing, schedules and dropout are tested where
# they belong, and SAM in train/test_sam.py, several sizes of patches in train/test_patch_sizes.py.
# _OF_FAMILY goes by the parameters' names. AdamW and SGD train every family in
# train/test_families.py, Muon finds what it steps in every family's tree in optim/test_build.py: a
# run differs by whether a family has statistics beside its parameters.
_OF_FAMILY = ("init.weights", "optim.freeze", "optim.layer_decay")
_WITH_STATISTICS = ("RegNetConfig", "ResNetConfig")
# Of any: what sees logits, gradients or leaves of whatever shape.
_OF_ANY = (
    *("optim.name", "objective.train_mode", "objective.distill.kind", "objective.family"),
    *("objective.lock", "objective.target", "model.head_norm"),
)


def choices(cfg: Config) -> frozenset[tuple[Any, ...]]:
    """Return what decides which code a shrunk run takes."""

    def choice(name: str) -> Any:
        value = tree.get(name)
        if name in ("optim.freeze", "optim.layer_decay"):
            return value not in ("", 1.0)
        return value.split(":")[0] if name == "init.weights" else value

    tree = config_json.flatten(config_json.to_json(cfg))
    family, distilled = tree["model.family"], bool(tree.get("model.distilled"))
    taught = isinstance(cfg.objective, DistillConfig)
    # A teacher is heard by the one head that there is, or by the second, or that one hears labels.
    made: set[tuple[Any, ...]] = {("heads", distilled, taught)}
    made.add(("statistics", family in _WITH_STATISTICS))
    # A sigmoid loss of pairs is another than of classes.
    made.add(("anchored", bool(tree.get("objective.gram.weight"))))
    made.add(("loss", cfg.objective.embeds_texts, tree.get("objective.loss")))
    made |= {(family, name, choice(name)) for name in _OF_FAMILY if choice(name)}
    made |= {(name, choice(name)) for name in _OF_ANY}
    return frozenset(made)


# Together they make every choice that a run makes.
TRAINED = (
    "finetune_digits:finetune_augmented",
    "cait_imagenet:xxs24_384",
    "tenth_digits:distilled",
    "finetune_bit:cifar10",
    "deit3_imagenet:s16",
    "deit_distilled_imagenet:b16_384",
    "swin_imagenet:b_384",
    "convnext_imagenet:b_384",
    "hiera_imagenet:t",
    "finetune_vit:cifar10",
    "mixer_b16_imagenet",
    "resnet_digits",
    "vit_b16_imagenet_mpp",
    "mae_imagenet:b16",
    "mae_linear:b16",
    "unlabelled_digits:dino",
    "dino_imagenet:dinov3_gram",
    "lejepa_imagenet:l14",
    "ijepa_imagenet:h14",
    "segment_ade20k:s",
    "eomt:ade20k_l",
    "eomt:instance_l_dinov3",
    "siglip_imagetext:b16",
    "lit_imagetext:b16",
    "finetune_imagetext:clip_b32",
    "nyu_depth:b",
    "depth_folder:s14",
    "labels_digits:numbers",
)


def run_id(run: tuple[Path, str]) -> str:
    return f"{run[0].stem}:{run[1]}".rstrip(":")


def test_config_is_valid(subtests: pytest.Subtests) -> None:
    for run in RUNS:
        with subtests.test(run_id(run)):
            config_lib.check(load(*run))


def test_those_that_are_trained_make_every_choice() -> None:
    made = {run_id(run): choices(shrink(load(*run))) for run in RUNS}
    rest = frozenset().union(*made.values()) - frozenset().union(*(made[run] for run in TRAINED))
    lacking = {run: sorted(map(str, found & rest)) for run, found in made.items() if found & rest}
    assert not lacking, "add one of these to TRAINED"


def test_docstring_says_what_a_reader_needs(subtests: pytest.Subtests) -> None:
    for path in FILES:
        with subtests.test(path.stem):
            text = path.read_text()
            assert f"--config=configs/{path.name}" in text
            for word in ("Hardware:", "Published:"):
                assert word in text, f"{path.name} lacks {word!r}"
            assert len(text.splitlines()) <= 80


def test_names_of_files_and_runs_say_the_variant() -> None:
    for path, arg in RUNS:
        family, published, _ = path.stem.partition("_imagenet")
        of_any = ("augreg", "dino", "lejepa", "ijepa", "naflex", "referee")  # model; of recipes
        if not published or family in of_any:
            continue
        family, distilled, _ = family.partition("_distilled")
        size, _, side = arg.partition("_")
        parts = [family, size, distilled.strip("_"), side]
        name = arg if family == "regnet" else "_".join(part for part in parts if part)
        cfg, variant = load(path, arg).model, models.variant(name)
        assert type(cfg) is type(variant), path
        for field in SHRINK[type(cfg)](cfg):
            if field not in ("image_size", "pre_logits_dim", "drawn_patches"):
                assert getattr(cfg, field) == getattr(variant, field), f"{path}: {field}"


def test_every_family_has_a_published_run_and_a_small_one() -> None:
    families = {type(cfg) for cfg in models.VARIANTS.values()}
    loaded = {run: type(load(*run).model) for run in RUNS}
    for kind in ("imagenet", "digits"):
        assert {family for run, family in loaded.items() if kind in run[0].stem} == families


@pytest.mark.parametrize(
    "argument, told",
    [
        ("augreg_imagenet.py:vit_s16", "vit_s16 must be augreg_imagenet.py:MODEL,AUG"),
        ("augreg_imagenet.py:vit_s16,none", "DECAY: 0.03, 0.1; RATE: 0.0, 0.1"),
        ("augreg_imagenet.py:vit_s61,none,0.1,0.0", "no 'vit_s61'; MODEL: vit_ti16, vit_s32"),
        (
            "augreg_imagenet.py:vit_s16,medium,0.1,0.0",
            "AUGMENTATION: none, light1, light2, medium1",
        ),
        ("augreg_imagenet.py:vit_s16,none,0.3,0.0", "no '0.3'; DECAY: 0.03, 0.1"),
        ("augreg_imagenet.py:vit_s16,none,0.1,0.2", "no '0.2'; RATE: 0.0, 0.1"),
    ],
)
def test_a_wrong_argument_is_one_line_with_the_choices(argument: str, told: str) -> None:
    argv = ["main.py", f"--config={CONFIGS / argument}"]
    with pytest.raises(UserError) as error:
        flags.read_config(argv)
    assert told in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "argument, choices",
    [
        ("cait_imagenet.py:s24_448", "xxs24, xxs24_384, s24, s24_"),
        ("deit3_imagenet.py:h14_384", "s16, s16_384, b16, b16_224"),
        ("finetune_bit.py:cifar", "cifar10, cifar100, oxford_iiit"),
        ("finetune_digits.py:head", "finetune, probe, scratch"),
        ("tenth_digits.py:cnn", "plain, augmented, convit, convit_plain"),
    ],
)
def test_an_unknown_run_of_a_file_is_told_all_of_them(argument: str, choices: str) -> None:
    with refused_by("recipes.choose") as error:
        flags.read_config(["main.py", f"--config={CONFIGS / argument}"])
    assert choices in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_file_of_one_run_takes_no_argument() -> None:
    with refused_by("config.saved.load"):
        flags.read_config(["main.py", f"--config={CONFIGS}/vit_b16_imagenet.py:384"])


def test_an_argument_reaches_the_config() -> None:
    argv = ["main.py", f"--config={CONFIGS}/deit3_imagenet.py:b16_384", "--config.optim.lr=2e-5"]
    cfg = flags.read_config(argv)
    assert (cfg.model.image_size, cfg.optim.lr) == ((384, 384), 2e-5)


def test_every_file_of_a_run_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CONFIGS.parent)
    argv = ["main.py"]
    with refused_by("cli.parsing.flags.read_config") as error:
        flags.read_config(argv)
    listed = set(str(error.value).partition("one of: ")[2].split(", "))
    assert listed == {path.stem for path in FILES}


def test_what_an_older_version_did_not_write_was_at_its_default() -> None:
    cfg = load(CONFIGS / "vit_mu_digits.py")
    saved = config_json.to_json(cfg)
    del saved["init"], saved["model"]["pool_prefix"]
    del saved["optim"]["coupled_decay"], saved["optim"]["muon_debias"]
    assert config_json.changes(saved, config_json.to_json(cfg)) == []
    cfg.init.weights, cfg.model.pool_prefix = "npz:x", True
    assert config_json.changes(saved, config_json.to_json(cfg)) == [
        "init.weights: '' -> 'npz:x'",
        "model.pool_prefix: False -> True",
    ]
