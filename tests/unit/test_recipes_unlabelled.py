# SPDX-License-Identifier: Apache-2.0
"""The published settings of runs without labels, and of images with texts."""

import dataclasses
import re

import pytest

from tests.unit.test_recipes import TABLE, get
from vit_jax import models
from vit_jax.config.tree import fitted
from vit_jax.data import Crop
from vit_jax.data import Resize as Interpolation
from vit_jax.evals import KNNEval
from vit_jax.models.layers.drop import DropPathRule
from vit_jax.objectives import Lock
from vit_jax.optim import Optimizer, Schedule
from vit_jax.recipes import image_text


@pytest.mark.parametrize("size, layer_decay", [("b16", 0.65), ("l16", 0.75), ("h14", 0.75)])
def test_mae_as_its_authors_trained_it(size: str, layer_decay: float) -> None:
    pretrained, tuned, probed = (
        get(f"mae_{stage}:{size}") for stage in ("imagenet", "finetune", "linear")
    )
    assert (pretrained.optim.beta1, pretrained.optim.beta2) == (0.9, 0.95)
    assert pretrained.data.transform.area == (0.2, 1.0)
    assert (pretrained.objective.share, pretrained.objective.norm_pix) == (0.75, True)
    decoder = pretrained.objective
    assert (decoder.decoder_dim, decoder.decoder_depth, decoder.decoder_heads) == (512, 8, 16)
    assert (tuned.optim.beta2, tuned.optim.layer_decay) == (0.999, layer_decay)
    assert tuned.data.transform.auto_augment == "rand-m9-mstd0.5-inc1"
    assert (tuned.model.pool, tuned.model.fc_norm) == ("gap", True)
    assert (probed.model.pool, probed.model.head_norm) == ("cls", True)
    assert (probed.optim.freeze, probed.optim.momentum) == ("^(?!head/)", 0.9)


def test_masked_patches_as_the_vit_paper_trained_them() -> None:
    cfg = get("vit_b16_imagenet_mpp")
    assert (cfg.objective.share, cfg.objective.masked, cfg.objective.swapped) == (0.5, 0.8, 0.1)
    assert (cfg.data.transform.crop, cfg.data.transform.flip) == (Crop.INCEPTION, True)


# Weight decay at the end, layer decay, steps of held prototypes; temperature of the teacher, its
# warmup; least share of the large crops; weights of iBOT and KoLeo; heads, unit prototypes,
# balance.
DINO = {
    "dino": (0.4, 1.0, "1 epoch", 0.04, "", 0.4, 0, 0, 1, True, "centre"),
    "dino_300": (0.4, 1.0, "1 epoch", 0.07, "30 epochs", 0.4, 0, 0, 1, False, "centre"),
    "dinov2": (0.4, 0.9, "1250 steps", 0.07, "37500 steps", 0.32, 1, 0.1, 1, True, "centre"),
    "dinov3": (0.4, 0.9, "1250 steps", 0.07, "37500 steps", 0.32, 1, 0.1, 2, False, "sinkhorn"),
}


DINO["dinov3_gram"] = DINO["dinov3"]


@pytest.mark.parametrize("run", DINO)
def test_dino_as_its_authors_trained_it(run: str) -> None:
    cfg = get(f"dino_imagenet:{run}")
    optim, objective, large = cfg.optim, cfg.objective, cfg.data.transform
    heads = 2 if objective.patch_weight and not objective.shared_head else 1
    assert DINO[run] == (
        *(optim.weight_decay_end, optim.layer_decay, optim.hold_for),
        *(objective.teacher_temperature, objective.temperature_warmup.replace("_", "")),
        *(large.area[0], objective.patch_weight, objective.spread_weight),
        *(heads, objective.head.unit_prototypes, objective.balance),
    )
    assert cfg.ema_decay_end == 1.0
    assert (objective.student_temperature, objective.first_temperature) == (0.1, 0.04)
    head = objective.head
    assert (head.prototypes, head.hidden_dim, head.bottleneck_dim) == (65536, 2048, 256)
    assert (head.layers, optim.beta1, optim.beta2) == (3, 0.9, 0.999)
    assert (objective.hidden_images, objective.hidden_share) == (0.5, (0.1, 0.5))
    assert (objective.small_crops, objective.small_size) == (8, (96, 96))
    crops = {"dino-blur1": large, "dino-blur0.1-solarize0.2": objective.second}
    for colours, crop in {**crops, "dino-blur0.5": objective.small}.items():
        assert (crop.auto_augment, crop.crop, crop.flip) == (colours, Crop.RANDOM_RESIZED, True)
        assert crop.resize is Interpolation.BICUBIC
    assert objective.second.area == large.area == (large.area[0], 1.0)
    assert objective.small.area == (0.05, large.area[0])
    anchors = objective.gram
    found = (anchors.weight, anchors.copies, anchors.every.replace("_", ""), anchors.size)
    anchored = (2.0, 3, "10000 steps", tuple(2 * side for side in cfg.model.image_size))
    assert found == (anchored if run == "dinov3_gram" else (0, 1, "", ()))
    if run.startswith(("dinov2", "dinov3")):
        assert optim.lr_multipliers == (("^patch_embed/", 0.2),)
        assert (cfg.model.depth, cfg.model.dim, cfg.model.layer_scale) == (24, 1024, 1e-5)
        assert cfg.model.drop_path_rule is DropPathRule.CONSTANT
    # The authors decay every tensor of more than one axis: tokens and positions too.
    names = ("cls_token", "pos_embed", "dino_head/prototypes/kernel", "blocks/0/mlp/fc1/kernel")
    assert all(re.search(optim.decay, name) for name in names)
    assert not any(re.search(optim.decay, x) for x in ("norm/scale", "norm/bias", "blocks/0/ls1"))


def test_jepas_as_their_authors_trained_them() -> None:
    large, small = get("lejepa_imagenet:l14"), get("lejepa_imagenet:s8_imagenette")
    for cfg, crops, directions, width in ((large, (2, 6), 1024, 128), (small, (4, 0), 256, 16)):
        objective = cfg.objective
        assert (objective.large_crops, objective.small_crops) == crops
        assert (objective.weight, objective.directions) == (0.02, directions)
        assert (objective.dim, objective.hidden_dim) == (width, 2048)
        assert (cfg.optim.decay, cfg.model.pool) == (".", "cls")
    assert (large.data.transform.area, large.objective.small.area) == ((0.3, 1.0), (0.05, 0.3))
    assert large.data.transform.auto_augment == large.objective.small.auto_augment
    assert (large.model.patch, large.objective.small_size) == ((14, 14), (98, 98))
    assert (small.model.patch, small.data.transform.area) == ((8, 8), (0.08, 1.0))
    # Small ones see crops of one size, and SIGReg weighs more in a smaller batch.
    for run, weight in (
        ("digits:lejepa", 0.05),
        ("glyphs:lejepa", 0.1),
        ("folder:lejepa_small", 0.05),
    ):
        cfg = get(f"unlabelled_{run}")
        objective = cfg.objective
        assert (objective.large_crops, objective.small_crops, objective.weight) == (4, 0, weight)
        assert (cfg.optim.name, cfg.optim.lr) == ("muon", 1e-2)
        assert not cfg.model.dynamic_image_size
    assert get("unlabelled_folder:lejepa").objective.weight == 0.02
    for run, patch in (("h14", 14), ("h16_448", 16)):
        cfg = get(f"ijepa_imagenet:{run}")
        optim, objective, transform = cfg.optim, cfg.objective, cfg.data.transform
        assert (optim.warmup_lr, optim.weight_decay_end, cfg.ema_decay_end) == (2e-4, 0.4, 1.0)
        assert (objective.target_scale, objective.target_aspect) == ((0.15, 0.2), (0.75, 1.5))
        assert (objective.targets, objective.context_scale) == (4, (0.85, 1.0))
        sizes = objective.predictor_dim, objective.predictor_depth, objective.predictor_heads
        assert sizes == (384, 12, 16)
        assert (transform.area, transform.flip, transform.auto_augment) == ((0.3, 1.0), False, "")
        assert (cfg.model.patch, cfg.model.depth, cfg.model.dim) == ((patch, patch), 32, 1280)
        assert (cfg.model.pos_embed, cfg.model.class_token) == ("sincos2d_mae", False)


def test_own_images_are_probed_where_they_have_labels() -> None:
    """Flat folders and those of one class have none; what the objective measures itself stays."""
    runs = {"mae_small": ["val"], "dino_small": [], "lejepa_small": [], "ijepa_small": []}
    for run, left in runs.items():
        config = get(f"unlabelled_folder:{run}")
        for num_classes in (0, 1):
            assert list(fitted(config, 60, num_classes).evals) == left
        assert list(fitted(config, 60, 2).evals) == ["knn", *left]
        assert fitted(config, 60, 0).duration == "1000 steps"
    asked = KNNEval(split="val")  # by the user: it is refused, not left out
    config = dataclasses.replace(get("unlabelled_folder:mae"), evals={"knn": asked})
    assert list(fitted(config, 60, 0).evals) == ["knn"]


PAIRS = [run for run in TABLE if "imagetext" in run]


def test_pairs_as_their_authors_trained_them(subtests: pytest.Subtests) -> None:
    for run in PAIRS:
        with subtests.test(run):
            cfg = get(run)
            optim, objective, transform = cfg.optim, cfg.objective, cfg.data.transform
            clip, siglip = run.startswith("clip"), run.startswith("siglip")
            assert optim.schedule is Schedule.COSINE
            if clip:
                assert (optim.beta1, optim.beta2, optim.eps) == (0.9, 0.98, 1e-6)
                assert (transform.crop, transform.area) == (Crop.RANDOM_RESIZED, (0.9, 1.0))
                assert cfg.data.mean == (0.48145466, 0.4578275, 0.40821073)
                assert cfg.data.std == (0.26862954, 0.26130258, 0.27577711)
            else:
                assert (transform.crop, cfg.data.mean) == (Crop.RESIZE, (0.5,))
                assert optim.decay == "kernel$"
            if siglip:
                assert (optim.beta2, objective.bias, objective.max_scale) == (0.95, -10.0, 0.0)
            assert objective.loss == ("sigmoid" if siglip else "softmax")
            assert siglip or objective.max_scale == 100.0
            assert objective.lock is (Lock.IMAGE if run.startswith("lit") else Lock.NONE)
            assert not transform.flip  # captions know left from right
            assert not objective.same_captions
            kinds = {name: (ev.dataset, ev.split) for name, ev in cfg.evals.items()}
            held_out = {
                "imagenet": ("imagenet2012", "validation"),
                "coco": ("coco_captions", "test"),
            }
            assert kinds == held_out
    contexts = {run: get(run).objective.text.context for run in PAIRS}
    assert contexts.pop("lit_imagetext:b16") == contexts.pop("siglip_imagetext:so400m14") == 16
    assert set(contexts.values()) == {64, 77}
    lit = get("lit_imagetext:b16")
    assert (lit.optim.name, lit.model) == (
        Optimizer.ADAFACTOR,
        models.variant("vit_b16", num_classes=0, dtype=lit.model.dtype),
    )


def test_open_clip_decays_tensors_of_two_axes_but_scales_and_biases() -> None:
    pattern = get("clip_imagetext:b16").optim.decay
    decayed = ("text/token_embed", "text/position_embed", "pos_embed", "image_head/kernel")
    others = ("cls_token", "logit_scale", "text/norm/scale", "text/blocks/0/mlp/fc1/bias")
    assert all(re.search(pattern, name) for name in (*decayed, "text/blocks/0/attn/qkv/kernel"))
    assert not any(re.search(pattern, name) for name in others)


def test_published_pairs_are_tuned_by_their_own_loss_on_their_own_images() -> None:
    for name, weights in image_text.WEIGHTS.items():
        cfg = get(f"finetune_imagetext:{name}")
        assert (cfg.init.weights, cfg.objective.tokenizer) == (weights, ""), name
        assert (cfg.optim.lr, cfg.optim.weight_decay, cfg.data.batch_size) == (1e-5, 0.1, 512)
        assert cfg.objective.loss == ("sigmoid" if name.startswith("siglip") else "softmax")
        assert (len(cfg.data.mean) == 3) == ("clip" in name), name
