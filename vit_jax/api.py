# SPDX-License-Identifier: Apache-2.0
"""The package in Python: models with or without weights, runs by name (docs/python.md)."""

import copy
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import Array, Float, UInt8

from vit_jax import inference, models, trees
from vit_jax import weights as weights_lib
from vit_jax.config.load import load as load_config
from vit_jax.config.tree import Config
from vit_jax.errors import UserError
from vit_jax.inference import Prediction, Trained
from vit_jax.inference.forward import layers_of, output_of
from vit_jax.inference.trained import named, reference, with_tta
from vit_jax.inference.units import as_input
from vit_jax.inference.views import Source, read_view
from vit_jax.models import ModelConfig, Output
from vit_jax.process import waiting
from vit_jax.settings import config_files
from vit_jax.settings import names as field_names
from vit_jax.storage import files
from vit_jax.train.loop import Result
from vit_jax.train.loop import fit as train
from vit_jax.weights import export
from vit_jax.weights.apply import OtherHead
from vit_jax.weights.load import initial
from vit_jax.weights.published.table import of_family, per_channel
from vit_jax.weights.reference import KINDS

Images = Any  # an array (B, H, W, C) of any library: `inference.units.as_input`


class Model:
    """A model with its weights, its preprocessing and its class names.

    Calls are compiled once for each shape of their images. `images` are [B, H, W, C] at the model's
    size: uint8, which is normalised as the weights ask for (as are other integers of 0 to 255), or
    normalised floats. Floats that seem to be of 0 to 255 or 0 to 1 are refused, unless a call says
    `normalised=True`. `predict` and `preprocess` take images of any size and kind.

    Attributes:
        trained: weights, and how images are prepared for them.
    """

    def __init__(self, trained: Trained) -> None:
        """Place the weights on the default device."""
        waiting.say_compilations()
        variables = jax.device_put(trained.variables)
        self.trained = dataclasses.replace(trained, variables=variables)

    @property
    def config(self) -> ModelConfig:
        """The network."""
        return self.trained.model

    @property
    def params(self) -> Any:
        """The parameters, a tree of float32 arrays."""
        return self.trained.variables["params"]

    @property
    def num_params(self) -> int:
        """The number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))

    @property
    def class_names(self) -> tuple[str, ...]:
        """K of them."""
        return self.trained.class_names

    def __repr__(self) -> str:
        """Name the family, the size and where the weights come from."""
        height, width = self.trained.image_size
        source = self.trained.ref or "random"
        count = f"{self.num_params:,} parameters, {self.config.num_classes:,} classes"
        return f"Model({type(self.config).__name__}, {height}x{width}, {count}, weights: {source})"

    def __call__(self, images: Images, *, normalised: bool = False) -> Float[Array, "B K"]:
        """Return the logits.

        Raises UserError: a model without a head, images of another shape or unit.
        """
        if not (self.config.num_classes and self.trained.has_head):
            raise UserError("the model has no head; use features, or give num_classes")
        return cast(jax.Array, self.output(images, normalised=normalised).logits)

    def output(self, images: Images, *, normalised: bool = False) -> Output:
        """Return all that the network returns: logits, features, tokens."""
        return output_of(*self._inputs(images, normalised))

    def features(self, images: Images, *, normalised: bool = False) -> Float[Array, "B D"]:
        """Return what the head sees."""
        return cast(jax.Array, self.output(images, normalised=normalised).features)

    def intermediates(
        self,
        images: Images,
        layers: int | Sequence[int] | None = None,
        *,
        norm: bool = False,
        grid: bool = False,
        prefix: bool = False,
        normalised: bool = False,
    ) -> list[Any]:
        """Return what layers return: blocks, or the stages of a Swin or a ResNet (as timm counts).

        Args:
            images: as for a call.
            layers: numbers from 0, negative ones from the end; a number n: the last n; None: all.
            norm: normalise them as the last layer is; of stages the last alone has a norm.
            grid: [B, P, Q, D], where the patches lie, instead of [B, N, D], row after row.
            normalised: as for a call.
            prefix: return pairs of that and the class, distillation and register tokens, [B, T, D].

        Raises UserError: a layer, a norm or tokens before the patches that the model lacks.
        """
        chosen = layers if layers is None or isinstance(layers, int) else tuple(layers)
        found = layers_of(*self._inputs(images, normalised), layers=chosen, norm=norm)
        if prefix and not any(each.prefix.shape[1] for each in found):
            raise UserError("prefix=True: no token comes before the patches of these layers")
        kept = [each.patches if grid else each.tokens for each in found]
        return list(zip(kept, (each.prefix for each in found), strict=True)) if prefix else kept

    def preprocess(self, image: Source) -> UInt8[np.ndarray, "H W C"]:
        """Return what the model sees of a file, open or by name, bytes, a Pillow image or pixels.

        Raises UserError: an image that cannot be read.
        """
        view = read_view(self.trained, image)
        if isinstance(view, str):
            raise UserError(view)
        return view

    def predict(
        self,
        images: Source | Sequence[Source],
        top: int = 5,
        *,
        batch_size: int = 32,
        tta: Sequence[str] = (),
    ) -> list[list[Prediction]]:
        """Return the `top` likeliest classes of each image, as `inference.predict` does.

        With `tta`, "flip", "shift" or both, they are averaged over such copies of the image.

        Raises UserError: an image that cannot be read, a model without a head, an unknown copy.
        """
        if not (self.config.num_classes and self.trained.has_head):
            raise UserError("the model has no head, and so no classes; use features")
        trained = with_tta(self.trained, tta)
        return inference.predict(trained, images, top, batch_size=batch_size)

    def save(self, file: str | Path, *, force: bool = False) -> None:
        """Write the weights under timm's names, which `load` and timm read.

        Raises UserError: no .safetensors, a file that is there, a model that timm does not have.
        """
        path = Path(file)
        files.check_file(path, "file", force=force, suffix=".safetensors")
        state = weights_lib.to_timm(jax.device_get(self.trained.variables), self.config)
        export.save(path, state, self.config, overwrite=True)

    def _inputs(self, images: Images, normalised: bool) -> tuple[Any, Array, ModelConfig, Any, Any]:
        trained = self.trained
        mean, std = tuple(trained.mean), tuple(trained.std)
        shape = (*trained.image_size, trained.channels)
        images = as_input(images, shape, mean, std, normalised=normalised)
        return trained.variables, images, trained.model, mean, std


def list_models(pattern: str = "") -> list[str]:
    """List the named variants whose names a regex finds: `list_models("^vit_b")`."""
    return [name for name in models.VARIANTS if re.search(pattern, name)]


def create_model(
    name: str | ModelConfig,
    *,
    num_classes: int | None = None,
    weights: str | Path = "",
    seed: int = 0,
    **fields: Any,
) -> Model:
    """Create a model by name, random or with weights: `create_model("vit_s16", num_classes=10)`.

    Args:
        name: a variant of `list_models()`, also with a size, `vit_b16_384`; a config; or
            "hub:USER/NAME", a repository with its weights.
        num_classes: of the head, 0 for none; where the weights' is another, it starts anew.
        weights: as for `load`; "" is random.
        seed: of random values.
        fields: other fields of the model's config, `image_size=384`.

    Raises UserError: an unknown name or field; weights that do not fit.
    """
    if isinstance(name, str) and name.partition(":")[0] in KINDS:
        weights, name = weights or name, inference.describe(name).model
    cfg = models.variant(name) if isinstance(name, str) else copy.copy(name)
    given = fields if num_classes is None else {"num_classes": num_classes, **fields}
    cfg = models.with_fields(cfg, given, name if isinstance(name, str) else "")
    models.create(cfg)  # which checks it
    ref = reference(str(weights)) if weights else ""
    trained = _described(ref, cfg)
    found = _read(trained, anew=num_classes is not None) if ref else {}
    rest = {name for name, _ in trees.named_leaves(models.abstract(cfg)) if name not in found}
    has_head = bool(cfg.num_classes) and (not rest or num_classes is not None or not ref)
    variables = trees.nest({**found, **initial(cfg, rest, jax.random.key(seed))})
    return Model(dataclasses.replace(trained, variables=variables, has_head=has_head))


def _described(ref: str, cfg: ModelConfig) -> Trained:
    """Describe the weights as those of a model of `cfg`, which are not read yet."""
    if not ref:
        mean, std, transform, *_ = of_family(cfg)
        fields = {"mean": mean, "std": std, "transform": transform}
        return Trained(ref="", source="", model=cfg, class_names=named((), cfg), **fields)
    found = inference.describe(ref, model=None if ref.startswith("ckpt:") else cfg)
    same = len(found.class_names) == cfg.num_classes
    names = found.class_names if same else named((), cfg)
    mean, std = (per_channel(values, cfg) for values in (found.mean, found.std))
    return dataclasses.replace(found, model=cfg, mean=mean, std=std, class_names=names)


def _read(trained: Trained, *, anew: bool) -> Mapping[str, np.ndarray]:
    """Read weights, without a head that does not fit where it may start `anew`."""
    read = functools.partial(weights_lib.read, trained.source, trained.model, ema=trained.ema)
    try:
        return read(headless=True)
    except OtherHead as error:
        if not anew:
            raise UserError(f"{error}, or give num_classes to start the head anew") from None
        return read(skip=error.patterns, headless=True)


def load(weights: str | Path, *, model: str | ModelConfig | None = None, **fields: Any) -> Model:
    """Load a trained model: `load("runs/digits")`, `load("x.npz", model="vit_b16_384")`.

    Args:
        weights: a run's workdir, also as "ckpt:DIR@STEP", "@best" or "@latest"; a file, "npz:FILE",
            "timm:FILE"; "hub:USER/NAME[@REVISION]" of the Hugging Face Hub, or "hub:./FOLDER".
        model: of a file: a variant, or a config; a run and a repository have their own.
        fields: fields of its config to change, `image_size=384`.

    Raises UserError: no such weights, or weights that do not fit.
    """
    cfg = models.variant(model) if isinstance(model, str) else model
    return Model(inference.load(str(weights), model=cfg, overrides=fields, headless=True))


def get_config(name: str | Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Return the config of a run by name: `get_config("vit_mu_digits", {"optim.lr": 1e-3})`.

    Args:
        name: what `vit_jax configs` lists, with ":RUN" where a file holds several; or a file.
        overrides: values by the paths of their fields.

    Raises UserError: no such config or field, with the nearest valid ones.
    """
    cfg = load_config(*config_files.find(str(name)))
    for path, value in (overrides or {}).items():
        field_names.check_path(cfg, path)
        above, _, field = path.rpartition(".")
        parent = field_names.value_at(cfg, above) if above else cfg
        if isinstance(parent, dict):
            parent[field] = value
        else:
            setattr(parent, field, value)
    return cfg


def fit(
    config: Config | str | Path,
    workdir: str | Path,
    overrides: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Train a run in a workdir, or continue it there: `fit("vit_mu_digits", "runs/digits")`.

    Args:
        config: a config, or the name or file of one.
        workdir: where checkpoints and logs are kept.
        overrides: as for `get_config`, where `config` is a name.
        settings: of `train.loop.fit`: allow_config_change, allow_data_change, window.

    Raises UserError: anything wrong with config, data or workdir.
    """
    if isinstance(config, Config) and overrides:
        raise UserError("overrides are for a config by name; change this one's fields instead")
    cfg = config if isinstance(config, Config) else get_config(config, overrides)
    return train(cfg, workdir, **settings)
