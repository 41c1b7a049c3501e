# SPDX-License-Identifier: Apache-2.0
"""What images of their own shapes ask of the rest of a config (docs/naflex.md)."""

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import is_native
from vit_jax.errors import UserError
from vit_jax.models.layers.attention import AttentionImpl
from vit_jax.objectives import SupervisedConfig


def check(cfg: Config) -> None:
    """Raise UserError, one line that names the field, for what has no rule for such images."""
    crops = {"data.transform": cfg.data.transform}
    crops |= {f"evals.{name}.transform": each.transform for name, each in cfg.evals.items()}
    takes = any(models.native_patch(cfg.model))
    for name, transform in crops.items():
        if is_native(transform) and not takes:
            raise UserError(
                f"{name}.crop={transform.crop} gives images of any shape; set model.native=True, "
                "or a named model such as naflexvit_b16_gap",
                field=f"{name}.crop",
            )
    if takes and not isinstance(cfg.objective, SupervisedConfig):
        learns = f"{type(cfg.objective).__name__} has no rule for images of any size"
        raise UserError(f"{learns}; set model.native=False", field="model.native")
    data = cfg.data
    if data.pack and not is_native(data.transform):
        raise UserError(
            "data.pack puts images of their own sizes into rows; set "
            "data.transform.crop=native_random, or data.pack=0",
            field="data.pack",
        )
    if not is_native(data.transform):
        return
    if data.mix.cutmix_alpha or data.erasing_prob:
        field = "data.mix.cutmix_alpha" if data.mix.cutmix_alpha else "data.erasing_prob"
        raise UserError(f"{field} cuts boxes of images of one size; set it to 0", field=field)
    if data.pack:
        _check_packed(cfg)


def _check_packed(cfg: Config) -> None:
    data, asked = cfg.data, f"data.pack={cfg.data.pack}"
    length = data.transform.lengths[0]
    broken = {
        "has rows of one length; set one of data.transform.lengths": len(data.transform.lengths)
        > 1,
        "needs a number of images; set data.batch_size": not data.batch_size,
        "mixes no images; set data.mix.mixup_alpha=0": data.mix.mixup_alpha > 0,
        "is not among cuDNN's kernels; set model.attention=auto": (
            getattr(cfg.model, "attention", "") is AttentionImpl.CUDNN
        ),
        "holds unlike numbers of images a shard; set mesh.reproducible=0": cfg.mesh.reproducible,
        f"must be a multiple of accum_steps={cfg.accum_steps}": data.pack % cfg.accum_steps,
        f"rows of {length} patches hold fewer images than data.batch_size={data.batch_size}; set "
        "more rows": data.batch_size > data.pack * length,
        f"rows are more than data.batch_size={data.batch_size} images; set fewer": (
            0 < data.batch_size < data.pack
        ),
    }
    for why, is_broken in broken.items():
        if is_broken:
            raise UserError(f"{asked} {why}", field="data.pack")
