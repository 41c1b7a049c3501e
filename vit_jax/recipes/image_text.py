# SPDX-License-Identifier: Apache-2.0
"""Images and texts: CLIP, SigLIP and LiT from scratch, and pairs on captions of one's own.

Numbers of arXiv papers are the papers'; "open_clip" is open_clip_torch 3.3.0 and its main branch of
2026-06 (params.py, main.py), "big_vision" its configs/proj/image_text and clippo of 2025-05.
"""

from typing import Any

from vit_jax import models
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, CropRule, DataConfig, Resize, TransformConfig
from vit_jax.evals import EvalConfig, RetrievalEval, ZeroShotEval
from vit_jax.models import DType, ModelConfig
from vit_jax.models import two_towers as pairs
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.models.text import TextConfig, TextInit, TextPool, TowerHead
from vit_jax.objectives import ContrastiveConfig, ContrastiveLoss, Lock
from vit_jax.optim import MomentDtype, OptimConfig, Optimizer
from vit_jax.recipes import choose, folder
from vit_jax.weights.config import InitConfig

# Of the images of OpenAI's, open_clip's, MetaCLIP's and DFN's ViTs.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
# open_clip decays what has more than one axis: tables of tokens and positions too.
_DECAYED = "kernel$|_embed$"
# Whose tokenizer a text tower of that many tokens has: CLIP's is in the package.
_TOKENIZERS = {
    49_408: "clip",
    32_000: "hub:google/siglip-base-patch16-224",
    250_000: "hub:google/siglip-base-patch16-256-multilingual",
    256_000: "hub:google/siglip2-base-patch16-224",
}


def two_towers(name: str, **fields: Any) -> tuple[ModelConfig, ContrastiveConfig]:
    """Return the image tower of a named pair, and the objective with its text tower and loss.

    The softmax loss of pairs without a bias, whose scale stays below 100, or SigLIP's; `fields` are
    the image tower's.

    Raises UserError: an unknown name or field, with the nearest valid ones.
    """
    pair = pairs.variant(name, **fields)
    objective = ContrastiveConfig(
        text=pair.text,
        dim=pair.dim,
        image_projection=pair.image_projection,
        tokenizer=_TOKENIZERS[pair.text.vocab_size],
    )
    if pair.has_bias:
        # SigLIP section 3.2: the scale begins at 10, the bias at -10, and neither is bounded.
        objective.loss, objective.max_scale = ContrastiveLoss.SIGMOID, 0.0
    return pair.image, objective


def _prepared(name: str) -> tuple[TransformConfig, dict[str, Any]]:
    """Return what published code does to images for a pair, and their mean and std."""
    if name.startswith(("clip_", "openclip_")):
        # open_clip transform.py: shortest side, bicubic, central square.
        plain = TransformConfig(
            crop=Crop.CENTER, crop_ratio=1.0, crop_rule=CropRule.TORCH, resize=Resize.BICUBIC
        )
        return plain, {"mean": CLIP_MEAN, "std": CLIP_STD}
    # big_vision `resize`; perception_models: squashed, bilinear with antialiasing.
    return TransformConfig(crop=Crop.RESIZE, resize=Resize.BILINEAR_ANTIALIAS), {}


def _published(
    name: str,
    towers: tuple[ModelConfig, ContrastiveConfig],
    optim: OptimConfig,
    duration: str,
    batch_size: int,
) -> Config:
    """Compose a run on tar files of images and captions, measured on ImageNet and COCO.

    80 prompts a class, as the papers; of COCO's test split all captions, as big_vision. `name` says
    whose images they are.
    """
    model, objective = towers
    # bfloat16 matmuls, as big_vision's and open_clip's main branch; embeddings and logits are
    # float32.
    model.dtype = DType.BFLOAT16
    objective.same_captions = False  # equal captions are negatives of each other, as theirs are
    plain, statistics = _prepared(name)
    common = {"transform": plain, "batch_size": 4096, "every": "5%"}
    evals: dict[str, EvalConfig] = {
        "imagenet": ZeroShotEval(dataset="imagenet2012", split="validation", **common),
        "coco": RetrievalEval(dataset="coco_captions", split="test", **common),
    }
    return Config(
        model=model,
        data=DataConfig(
            name="tar:data/pairs/*.tar",
            batch_size=batch_size,
            transform=TransformConfig(crop=plain.crop, resize=plain.resize),
            **statistics,
        ),
        optim=optim,
        objective=objective,
        duration=duration,
        evals=evals,
        checkpoint=CheckpointConfig(every="1000 steps", keep_best=0),  # the last one counts
        log=LogConfig(every="100 steps"),
    )


# Peak rates, arXiv:2103.00020 table 20.
CLIP = {"b32": 5e-4, "b16": 5e-4, "l14": 4e-4}


def clip(run: str) -> Config:
    """CLIP: arXiv:2103.00020 tables 18 to 20, with open_clip's crops and decay.

    32 epochs of 400 million pairs, batch 32,768, Adam (0.9, 0.98), eps 1e-6, decoupled weight decay
    0.2 times lr, cosine after 2,000 steps of warmup, no clipping, scale from 1 / 0.07 to 100 at
    most, boxes of 90 to 100 % of an image (open_clip: `--aug-cfg` scale). From memory, not checked
    against the paper: the tables.

    Raises UserError: no such run.
    """
    optim = OptimConfig(
        lr=CLIP[choose("run", run, CLIP)],
        warmup="2_000 steps",
        beta2=0.98,
        eps=1e-6,
        weight_decay=0.2,
        decay=_DECAYED,
        clip_norm=0.0,
    )
    name = f"clip_{run}"
    config = _published(name, two_towers(name), optim, "32 epochs", 32_768)
    # Differs from paper: a square cut from the resized image at random, there.
    config.data.transform.crop, config.data.transform.area = Crop.RANDOM_RESIZED, (0.9, 1.0)
    return config


# SigLIP's pairs; its L/16 is published from 256 pixels on.
SIGLIP = {"b16": "siglip_b16", "l16": "siglip_l16_256", "so400m14": "siglip_so400m14"}


def siglip(run: str) -> Config:
    """SigLIP: arXiv:2303.15343, with the schedule of arXiv:2502.14786 section 2.

    40 billion pairs, batch 32,768, Adam (0.9, 0.95), lr 1e-3, decoupled weight decay 1e-4 of the
    kernels, not times lr, clipping at 1, cosine after 20,000 steps of warmup, no augmentation.

    Raises UserError: no such run.
    """
    optim = OptimConfig(
        lr=1e-3,
        warmup="20_000 steps",
        beta2=0.95,  # section 4.5: with 0.999 losses jump at large batches
        weight_decay=0.1,  # 1e-4 / lr, big_vision's clippo
        clip_norm=1.0,
        mu_dtype=MomentDtype.BFLOAT16,
    )
    name = SIGLIP[choose("run", run, SIGLIP)]
    return _published(name, two_towers(name), optim, "40e9 examples", 32_768)


# Image towers of arXiv:2106.10270, at https://storage.googleapis.com/vit_models/augreg.
LIT = {"b16": "npz:B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz"}


def lit(run: str) -> Config:
    """LiT: arXiv:2111.07991, a text tower learned for an image tower that stays as it is.

    Batch 16,384, 60,000 steps, lr 1e-3, decoupled weight decay 1e-4, not times lr, Adafactor with
    a first moment in bfloat16, cosine after 10,000 steps of warmup, texts of 16 tokens, the softmax
    loss, no layer after the images' 768 features. From memory, not checked against the paper.

    Raises UserError: no such run.
    """
    optim = OptimConfig(
        name=Optimizer.ADAFACTOR,
        lr=1e-3,
        warmup="10_000 steps",
        weight_decay=0.1,  # 1e-4 / lr
        clip_norm=1.0,
        mu_dtype=MomentDtype.BFLOAT16,
    )
    weights = LIT[choose("run", run, LIT)]
    # Differs from paper: SigLIP's text tower in place of BERT's, whose norms come after its layers.
    _, objective = two_towers("siglip_b16")
    objective.text.context = 16
    objective.loss, objective.max_scale = ContrastiveLoss.SOFTMAX, 100.0
    objective.lock = Lock.IMAGE
    towers = models.variant("vit_b16", num_classes=0), objective
    config = _published("siglip_b16", towers, optim, "60000 steps", 16_384)
    config.init = InitConfig(weights=weights, skip=("^head/",))
    return config


# Weights to begin with, by what `configs/finetune_imagetext.py:NAME` calls them.
WEIGHTS = {
    "clip_b32": "hub:openai/clip-vit-base-patch32",
    "clip_b16": "hub:openai/clip-vit-base-patch16",
    "clip_l14": "hub:openai/clip-vit-large-patch14",
    "openclip_b32": "hub:laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
    "openclip_b16": "hub:laion/CLIP-ViT-B-16-laion2B-s34B-b88K",
    "siglip_b16": "hub:google/siglip-base-patch16-224",
    "siglip2_b16": "hub:google/siglip2-base-patch16-224",
    "siglip2_so400m14": "hub:google/siglip2-so400m-patch14-224",
}


def fine_tune(name: str) -> Config:
    """Fine-tune a published pair on captions of one's own.

    lr 1e-5 and weight decay 0.1 times it, batches of 512 (open_clip's users: lr 1e-5 to 5e-6, 512
    pairs at least), the loss that it was trained by, boxes of 90 to 100 % of an image. 10 epochs,
    and warmup of a tenth of them, are common and not tuned.

    Raises UserError: no such weights.
    """
    model, objective = two_towers(choose("pair", name, WEIGHTS))
    model.dtype = DType.BFLOAT16
    objective.tokenizer = ""  # that of the weights
    optim = OptimConfig(
        lr=1e-5, warmup="10%", beta2=0.98, eps=1e-6, weight_decay=0.1, decay=_DECAYED
    )
    plain, statistics = _prepared(name)
    train = TransformConfig(crop=Crop.RANDOM_RESIZED, area=(0.9, 1.0), resize=plain.resize)
    return Config(
        model=model,
        data=DataConfig(name="", batch_size=512, transform=train, **statistics),
        optim=optim,
        objective=objective,
        init=InitConfig(weights=WEIGHTS[name]),
        duration="10 epochs",
        evals={"val": RetrievalEval(split="val", every="10%", transform=plain)},
        checkpoint=CheckpointConfig(every="10%", metric="val/text_to_image_r1"),
        log=LogConfig(every="1%"),
    )


def _text(**sizes: Any) -> TextConfig:
    """Return a text tower in SigLIP's manner."""
    return TextConfig(
        causal=False,
        pool=TextPool.LAST,
        projection=TowerHead.AFFINE,
        norm_eps=1e-6,
        init=TextInit.SIGLIP,
        **sizes,
    )


def small() -> Config:
    """Train a pair of 0.9 million parameters on captions of one's own, with two cores.

    Images of 64 pixels, texts of 32 tokens of a vocabulary of 2,000 (`vit_jax train-tokenizer`),
    the softmax loss; the optimizer is `folder.optim`'s. Values are common, not tuned.
    """
    text = _text(vocab_size=2000, context=32, dim=96, depth=2, num_heads=3, mlp_dim=384)
    config = folder.images("small")
    plain = config.evals["val"].transform
    config.data.mix.mixup_alpha = 0.0  # a mixed image has no caption
    config.data.transform.flip = False  # captions know left from right
    config.data.transform.area = (0.6, 1.0)
    config.data.batch_size = 128  # the loss compares a batch's pairs
    config.objective = ContrastiveConfig(text=text, dim=96)
    config.init = InitConfig()
    config.evals = {"val": RetrievalEval(split="val", every="10%", transform=plain)}
    config.checkpoint.metric = "val/text_to_image_r1"
    return config


def emoji() -> Config:
    """Train a pair of 0.8 million parameters on drawings of emoji by several artists, on two cores.

    A ViT over the stem of a ResNet, for drawings of 32 pixels, and texts of 12 tokens of a
    vocabulary of 1,000; the optimizer is `folder.optim`'s. `benchmarks.emoji` makes what data.name
    and objective.tokenizer name, and has trials of some settings; the others are not tuned.
    """
    config = small()
    plain = config.evals["val"].transform
    config.model = models.variant(
        "r26_vit_s32",
        num_classes=0,
        image_size=(32, 32),
        patch=(2, 2),
        dim=128,
        depth=2,
        num_heads=4,
        mlp_dim=512,
        backbone_depths=(),
        backbone_widths=(),
        stem_width=32,
        num_groups=8,
        class_token=False,
        pool=Pool.MAP,
        pool_heads=4,
        pool_mlp_dim=256,
        pos_embed=PosEmbed.SINCOS2D,
    )
    text = _text(vocab_size=1000, context=12, dim=128, depth=1, num_heads=4, mlp_dim=512)
    tokenizer = "runs/emoji/words.json"
    config.objective = ContrastiveConfig(text=text, dim=128, tokenizer=tokenizer)
    config.data.name = "csv:runs/emoji/drawings/captions-twemoji.csv?captions=half"
    config.data.batch_size = 128
    config.data.mean = (1.0,)  # white paper, which convolutions go on with
    config.data.transform.area = (0.5, 1.0)
    config.data.transform.color_jitter = 0.6
    config.optim.warmup = "5%"
    config.duration = "6000 steps"
    config.evals = {"val": RetrievalEval(split="val_concept", every="50%", transform=plain)}
    config.checkpoint = CheckpointConfig(every="10%", keep_best=0)  # the last one counts
    return config
