# SPDX-License-Identifier: Apache-2.0
"""The published settings of runs that learn from pixels: segmentation and depth."""

import numpy as np
import pytest

from tests.unit.test_configs import CONFIGS, load
from tests.unit.test_recipes import get
from vit_jax import models
from vit_jax.data.config import cover_size
from vit_jax.optim.rules import make_rules


def test_a_linear_layer_of_ade20k_is_dinov3s() -> None:
    # facebookresearch/dinov3 eval/segmentation/configs/config-ade20k-linear-training.yaml.
    for size in ("s", "7b"):
        cfg = get(f"segment_ade20k:{size}")
        optim, seen = cfg.optim, cfg.data.transform
        assert (optim.name, optim.lr, optim.weight_decay) == ("adamw", 1e-3, 1e-3)
        assert (optim.clip_norm, optim.beta1, optim.beta2) == (0, 0.9, 0.999)
        assert (optim.schedule, optim.warmup, optim.min_lr) == ("cosine", "1_500 steps", 0)
        assert (cfg.duration, cfg.data.batch_size) == ("40_000 steps", 16)
        assert (cfg.model.image_size, cfg.objective.frozen) == ((512, 512), True)
        assert (cfg.objective.dropout_rate, seen.zoom, seen.zoom_side) == (0.1, (0.5, 2), "short")
        assert (seen.flip, seen.color_jitter, cfg.model.rope) == (True, 0, "dinov3")


# tue-mps/eomt configs/ and training/mask_classification_*.py: epochs, side, queries, blocks, lr,
# warmups of heads and encoder, the first and last step of the first block's annealing, llrd.
EOMT = """
ade20k_l          31 512 100 4 1e-4 500  1000 .     .     0.8
ade20k_l_dinov3   16 512 100 4 2e-4 2000 3000 0     3000  1
panoptic_s        24 640 200 3 1e-4 500  1000 29564 59128 0.8
panoptic_b        24 640 200 3 1e-4 500  1000 29564 59128 0.8
panoptic_l        12 640 200 4 1e-4 500  1000 .     .     0.8
panoptic_l_dinov3 12 640 200 4 2e-4 2000 3000 0     3000  0.8
instance_l        12 640 200 4 1e-4 500  1000 .     .     0.8
instance_l_dinov3 12 640 200 4 2e-4 2000 3000 0     3000  0.8
"""


def test_eomt_is_its_authors(subtests: pytest.Subtests) -> None:
    for row in EOMT.strip().splitlines():
        run, epochs, side, queries, blocks, lr, heads, encoder, first, last, decay = row.split()
        with subtests.test(run):
            cfg = get(f"eomt:{run}")
            optim, learned, seen = cfg.optim, cfg.objective, cfg.data.transform
            assert (cfg.duration, cfg.model.image_size[0]) == (f"{epochs} epochs", int(side))
            assert (learned.queries, learned.blocks) == (int(queries), int(blocks))
            times = [text.replace("_", "") for text in (optim.warmup, optim.late_warmup)]
            assert times == [f"{heads} steps", f"{encoder} steps"]
            assert optim.late_start == optim.warmup
            settings = (optim.lr, optim.weight_decay, optim.decay, optim.clip_norm)
            assert settings == (float(lr), 0.05, ".", 0.01)
            assert (optim.schedule, optim.poly_power, cfg.data.batch_size) == ("poly", 0.9, 16)
            if first != ".":
                starts = learned.anneal_start[0] or "0 steps"
                assert (starts, learned.anneal_end[0]) == (f"{first} steps", f"{last} steps")
            else:
                assert not learned.anneal_start
            zoom = (0.5, 2) if run.startswith("ade") else (0.1, 2)
            assert (seen.zoom, seen.zoom_side, cfg.model.patch) == (zoom, "long", (16, 16))
            loss = learned.loss
            assert (loss.class_weight, loss.mask_weight, loss.dice_weight) == (2, 5, 5)
            assert (loss.no_object, loss.points) == (0.1, 12544)
            # Block i of n has llrd ** (n - 1 - i), what is before as block 0, the norm all of it.
            params = models.abstract(cfg.model)["params"]
            rules, n, rate = make_rules(optim, params), cfg.model.depth, float(decay)
            wanted = np.array([rate ** (n - 1 - i) for i in range(n)])
            if "coco" in cfg.data.name and "dinov3" in run:  # llrd_l2_enabled: False
                wanted[n - int(blocks) :] = 1
            found = np.broadcast_to(rules.lr["blocks/attn/qkv/kernel"].reshape(-1), n)
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
            before = rules.lr["patch_embed/kernel"], rules.lr["cls_token"], rules.lr["norm/scale"]
            np.testing.assert_allclose(before, [wanted[0], wanted[0], 1], rtol=1e-5)


def test_depth_as_its_authors_learned_it() -> None:
    for run, lr, decay, betas, warmup in (
        ("s", 3e-4, 1e-4, (0.9, 0.99), "12_800 steps"),
        ("dpt", 1e-4, 0.01, (0.9, 0.999), "30%"),
    ):
        cfg = load(CONFIGS / "nyu_depth.py", run)
        optim, test = cfg.optim, cfg.evals["test"]
        assert (optim.lr, optim.weight_decay, optim.clip_norm) == (lr, decay, 35.0)
        assert ((optim.beta1, optim.beta2), optim.warmup) == (betas, warmup)
        assert (cfg.duration, cfg.data.batch_size) == ("38400 steps", 16)
        assert (cfg.model.image_size, test.image_size) == ((416, 544), (480, 640))
        assert (test.crop, test.flip, test.max_depth) == ("eigen", True, 10.0)
        # The short side of NYU's images stays as it is: 416 of its 480 pixels are cut.
        assert cover_size(cfg.model.image_size, cfg.data.transform.crop_ratio)[0] == 480
    linear, dpt = (load(CONFIGS / "nyu_depth.py", run).objective for run in ("l", "dpt"))
    assert (linear.head, linear.frozen, linear.bins) == ("linear", True, 256)
    assert (dpt.head, dpt.dpt.taps, dpt.dpt.widths) == ("dpt", (2, 5, 8, 11), (96, 192, 384, 768))
    assert load(CONFIGS / "nyu_depth.py", "dpt").optim.min_lr == pytest.approx(1e-4 / 2500)
