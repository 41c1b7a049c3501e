# SPDX-License-Identifier: Apache-2.0
"""The package in Python: models with or without weights, runs by name (docs/python.md)."""

import copy
import dataclasses
import fnmatch
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
from jaxtyping import Array, Float, Num

from vit_jax import data, errors, inference, models, trees
from vit_jax import weights as weights_lib
from vit_jax.config.saved import load as load_config
from vit_jax.config.tree import Config
from vit_jax.errors import UserError
from vit_jax.inference import Prediction, Trained
from vit_jax.inference.forward import layers_of, output_of
from vit_jax.inference.trained import named, named_pair, reference, with_tta
from vit_jax.inference.units import as_input
from vit_jax.inference.views import Source, read_view
from vit_jax.models import ModelConfig, Output
from vit_jax.process import waiting
from vit_jax.settings import config_files, fields
from vit_jax.settings import names as field_names
from vit_jax.storage import files
from vit_jax.train.loop import Result
from vit_jax.train.loop import fit as train
from vit_jax.train.report.profile import Window
from vit_jax.weights import export
from vit_jax.weights.apply import OtherHead
from vit_jax.weights.config import KINDS
from vit_jax.weights.loading import initial
from vit_jax.weights.published import timm_config
from vit_jax.weights.published.table import of_family, of_timm, per_channel

if TYPE_CHECKING:
    from vit_jax.inference.pairs import Pair
    from vit_jax.models.two_towers import TwoTowers

Images = Any  # an array (B, H, W, C) of any library: `inference.units.as_input`


class Model:
    """A model with its weights, its preprocessing and its class names.

    Calls are compiled once for each shape of their images. `images` are [B, H, W, C] at the model's
    size: uint8, which is normalised as the weights ask for (as are other integers of 0 to 255), or
    normalised floats. Floats that seem to be of 0 to 255 or 0 to 1 are refused, unless a call says
    `normalised=True`. `predict` and `preprocess` take images of any size and kind. `apply` is the
    same network as a function of its variables, for gradients.

    Attributes:
        trained: weights, and how images are prepared for them.
    """

    def __init__(self, trained: Trained) -> None:
        """Place the weights on the default device.

        Raises UserError: no trained model, as `inference.load` returns it.
        """
        if not isinstance(trained, Trained):
            made = "vit_jax.load(...) and vit_jax.create_model(...) return a Model"
            raise UserError(f"trained={trained!r} is no trained model; {made}")
        waiting.say_compilations()
        variables = jax.device_put(trained.variables)
        self.trained = dataclasses.replace(trained, variables=variables)

    @property
    def config(self) -> ModelConfig:
        """The network."""
        return self.trained.model

    @property
    def module(self) -> Any:
        """Flax's module, an `nn.Module`: `module.apply(variables, normalised, train=True, ...)`."""
        return models.create(self.config)

    @property
    def variables(self) -> Mapping[str, Any]:
        """All that the module takes: {"params": ...}, and of a BatchNorm "batch_stats"."""
        return self.trained.variables

    @property
    def params(self) -> Any:
        """The parameters, a tree of float32 arrays."""
        return self.variables["params"]

    @property
    def num_params(self) -> int:
        """The number of parameters."""
        return trees.num_params(self.params)

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
        return self.apply(self.variables, images, normalised=normalised)

    def apply(
        self, variables: Mapping[str, Any], images: Images, *, normalised: bool = False
    ) -> Output:
        """Return what the network returns with other variables: a pure function, in evaluation.

        Gradients go through it, to the variables and to normalised images, and so do `jax.jit` and
        `jax.vmap`. `module.apply` is Flax's own, with dropout and updates of BatchNorm.

        Args:
            variables: as `model.variables`, such as {**model.variables, "params": params}.
            images: as for a call; of an array that is being traced the dtype alone decides.
            normalised: as for a call.

        Raises UserError: variables without "params", images of another shape or unit.
        """
        if not isinstance(variables, Mapping) or "params" not in variables:
            raise UserError(
                'variables lack "params": give {**model.variables, "params": params}, not params'
            )
        return output_of(variables, *self._inputs(images, normalised)[1:])

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
        if layers is not None:
            layers = fields.conformed(int | tuple[int, ...], "layers", layers)
        found = layers_of(*self._inputs(images, normalised), layers=layers, norm=norm)
        if prefix and not any(each.prefix.shape[1] for each in found):
            raise UserError("prefix=True: no token comes before the patches of these layers")
        kept = [each.patches if grid else each.tokens for each in found]
        return list(zip(kept, (each.prefix for each in found), strict=True)) if prefix else kept

    @functools.cached_property
    def pair(self) -> "Pair":
        """The text tower beside the encoder, with its tokenizer; read when it is first asked for.

        Raises UserError: there is none.
        """
        from vit_jax.inference import pairs  # late: most models have no texts

        return pairs.load(self.trained)

    def encode_image(self, images: Images, *, normalised: bool = False) -> Float[Array, "B E"]:
        """Return the unit vectors of images in the space that they share with texts.

        Raises UserError: a model without a text tower, images of another shape or unit.
        """
        from vit_jax.inference import pairs

        return pairs.embed_features(self.pair, self.features(images, normalised=normalised))

    def encode_text(self, texts: str | Sequence[str]) -> Float[np.ndarray, "T E"]:
        """Return the unit vectors of texts; one text is a list of one.

        How they are lower-cased, cut and padded is the weights' own.

        Raises UserError: a model without a text tower.
        """
        from vit_jax.inference import pairs

        return pairs.embed_texts(self.pair, [texts] if isinstance(texts, str) else list(texts))

    def similarity(
        self, images: Images, texts: str | Sequence[str], *, normalised: bool = False
    ) -> Float[Array, "B T"]:
        """Return the logits of images and texts: cosines times the learned scale, plus its bias.

        A softmax over the texts (CLIP), or a sigmoid of each (SigLIP), makes them probabilities.

        Raises UserError: as `encode_image`.
        """
        from vit_jax.inference import pairs

        found = self.encode_image(images, normalised=normalised)
        return pairs.similarity(self.pair, found, self.encode_text(texts))

    def preprocess(self, image: Source) -> Num[np.ndarray, "H W C"]:
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
        tta: str | Sequence[str] = (),
    ) -> list[list[Prediction]]:
        """Return the `top` likeliest classes of each image, as `inference.predict` does.

        With `tta`, "flip", "shift" or both, they are averaged over such copies of the image.

        Raises UserError: an image that cannot be read, a model without a head, an unknown copy.
        """
        top = _whole("top", top, least=1)
        batch_size = _whole("batch_size", batch_size, least=1)
        copies = (tta,) if isinstance(tta, str) else tta
        if not isinstance(copies, Sequence):
            raise UserError(f"tta={tta!r} must be names of copies, such as ('flip', 'shift')")
        if not (self.config.num_classes and self.trained.has_head):
            raise UserError("the model has no head, and so no classes; use features")
        trained = with_tta(self.trained, copies)
        return inference.predict(trained, images, top, batch_size=batch_size)

    def save(self, file: str | Path, *, force: bool = False) -> None:
        """Write the weights under timm's names, which `load` and timm read.

        Raises UserError: no .safetensors, a file that is there, a model that timm does not have.
        """
        path = Path(_path("file", file))
        files.check_file(path, "file", force=force, suffix=".safetensors")
        state = weights_lib.to_timm(jax.device_get(self.trained.variables), self.config)
        export.save(path, state, self.config, overwrite=True)

    def _inputs(self, images: Images, normalised: bool) -> tuple[Any, Array, ModelConfig, Any, Any]:
        trained = self.trained
        mean, std = tuple(trained.mean), tuple(trained.std)
        shape = (*trained.image_size, trained.channels)
        images = as_input(images, shape, mean, std, normalised=normalised, dtype=trained.dtype.name)
        return trained.variables, images, trained.model, mean, std


def normalize(images: Images, model: Model) -> Float[Array, "B H W C"]:
    """Return pixels as the network takes them, by the model's own mean and deviation.

    It is what a call does to pixels, for `model.apply`, `model.module` and gradients by images.

    Args:
        images: [B, H, W, C] at the model's size, integers of 0 to 255.
        model: whose `trained.mean` and `trained.std` these are, in units where white is 1.

    Raises UserError: floats, no pixels, images of another shape.
    """
    if not isinstance(model, Model):
        raise UserError(f"model={model!r} is no Model; normalize(images, model) takes its mean")
    _, pixels, _, mean, std = model._inputs(images, normalised=False)
    if model.trained.dtype.kind == "f":  # bands in the unit of their data, normalised already
        return pixels
    if pixels.dtype != model.trained.dtype:
        raise UserError(
            f"images of {pixels.dtype} are no pixels: normalize takes integers of 0 to 255; of "
            "floats x from 0 to 1, (x - model.trained.mean) / model.trained.std"
        )
    return data.normalize(pixels, mean, std)


def list_models(pattern: str = "*") -> list[str]:
    """List the named variants that a glob matches: `list_models("vit_b*")`, `list_models("*b16*")`.

    Raises UserError: a pattern that matches none.
    """
    glob = str(pattern) or "*"
    found = [name for name in models.VARIANTS if fnmatch.fnmatchcase(name, glob)]
    if not found:
        why = errors.unknown("model", glob, models.VARIANTS)
        raise UserError(f"{why} A pattern is a glob, such as 'vit_b*' or '*b16*'")
    return found


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
        name: a variant of `list_models()`, also with a size, `vit_b16_384`; timm's name of a
            network, "vit_base_patch16_224.augreg_in21k"; a config; or "hub:USER/NAME", a repository
            with its weights.
        num_classes: of the head, 0 for none; where the weights' is another, it starts anew.
        weights: as for `load`; "" is random.
        seed: of random values.
        fields: other fields of the model's config, `image_size=384`.

    Raises UserError: an unknown name or field; weights that do not fit.
    """
    if "pretrained" in fields:
        known = timm_config.by_name(str(name))
        hub = f"hub:timm/{known[1]['name']}" if known else "hub:USER/NAME"
        raise UserError(
            f"pretrained={fields['pretrained']}: a model is random unless weights= says which it "
            f"has; weights={hub!r} downloads published ones, weights='timm:FILE' reads a file"
        )
    seed = _whole("seed", seed)
    if isinstance(name, str) and name.partition(":")[0] in KINDS:
        weights, name = weights or name, inference.describe(name).model
    cfg, about = _network(name)
    given = fields if num_classes is None else {"num_classes": num_classes, **fields}
    cfg = models.with_fields(cfg, given, name if isinstance(name, str) else "")
    models.create(cfg)  # which checks it
    ref = reference(str(weights)) if weights else ""
    trained = _described(ref, cfg, about)
    found = _read(trained, anew=num_classes is not None) if ref else {}
    rest = None  # all
    if ref:
        rest = {name for name, _ in trees.named_leaves(models.abstract(cfg)) if name not in found}
    has_head = bool(cfg.num_classes) and (not rest or num_classes is not None)
    variables = trees.nest({**found, **initial(cfg, rest, jax.random.key(seed))})
    return Model(dataclasses.replace(trained, variables=variables, has_head=has_head))


def _network(name: str | ModelConfig) -> tuple[ModelConfig, Mapping[str, Any]]:
    """Return a config by name, and of one of timm's names what timm's table says of it."""
    if isinstance(name, ModelConfig):
        return copy.copy(name), {}
    if not isinstance(name, str):
        raise UserError(
            f"{name!r} names no model: give a variant of list_models(), one of timm's names, "
            "'hub:USER/NAME', or a config"
        )
    scheme, _, rest = name.partition(":")
    if scheme in ("hf-hub", "hf_hub"):  # as timm writes it
        raise UserError(f"{name}: write hub:{rest}, which has its weights too")
    try:
        return models.variant(name), {}
    except UserError:
        if found := timm_config.by_name(name):
            return found
        names = [*models.VARIANTS, *timm_config.architectures()]
        raise errors.unknown("model", name, names) from None


def _described(ref: str, cfg: ModelConfig, about: Mapping[str, Any]) -> Trained:
    """Describe the weights as those of a model of `cfg`, which are not read yet."""
    if not ref:
        found = of_timm(about, about["name"], cfg) if about else of_family(cfg)
        mean, std, transform, *_ = found
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


def load(
    weights: str | Path,
    *,
    model: "str | ModelConfig | TwoTowers | None" = None,
    tokenizer: str = "",
    **fields: Any,
) -> Model:
    """Load a trained model: `load("runs/digits")`, `load("x.npz", model="vit_b16_384")`.

    Args:
        weights: a run's workdir, also as "ckpt:DIR@STEP", "@best" or "@latest"; a file, "npz:FILE",
            "timm:FILE"; "hub:USER/NAME[@REVISION]" of the Hugging Face Hub, or "hub:./FOLDER".
        model: of a file: a variant, timm's name of a network, a config, or a pair of towers such
            as "siglip2_b16"; a run and a repository have their own.
        tokenizer: of a file with two towers, which has none: "clip", "hub:USER/NAME", a FILE.
        fields: fields of its config to change, `image_size=384`.

    Raises UserError: no such weights, or weights that do not fit.
    """
    towers = _towers(model)
    if tokenizer and not towers:
        needs = "a file with two towers, whose pair is named, as model='siglip2_b16'"
        raise UserError(f"tokenizer={tokenizer!r} is of {needs}; leave it out", field="tokenizer")
    cfg = towers.image if towers else None if model is None else _network(cast(Any, model))[0]
    found = inference.load(str(weights), model=cfg, overrides=fields, headless=True)
    return Model(dataclasses.replace(found, towers=towers, tokenizer=tokenizer))


def _towers(name: Any) -> "TwoTowers | None":
    """Return a pair of towers by its name; None for a name of one network."""
    if isinstance(name, str):
        return named_pair(name)
    if name is None or isinstance(name, ModelConfig):
        return None
    from vit_jax.models import two_towers  # late: most models have no texts

    return name if isinstance(name, two_towers.TwoTowers) else None


def get_config(name: str | Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Return the config of a run by name: `get_config("vit_mu_digits", {"optim.lr": 1e-3})`.

    Args:
        name: what `vit_jax configs` lists, with ":RUN" where a file holds several; or a file.
        overrides: values by the paths of their fields.

    Raises UserError: no such config or field, with the nearest valid ones.
    """
    overrides = {} if overrides is None else overrides
    if not isinstance(overrides, Mapping) or not all(isinstance(path, str) for path in overrides):
        raise UserError(f"overrides={overrides!r} must be values by paths, {{'optim.lr': 1e-3}}")
    words = [f"--config.{path}={value}" for path, value in overrides.items()]
    cfg = load_config(*config_files.find(str(name)), words)
    for path, value in overrides.items():
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
    *,
    allow_config_change: bool = False,
    allow_data_change: bool = False,
    window: Window | None = None,
) -> Result:
    """Train a run in a workdir, or continue it there: `fit("vit_mu_digits", "runs/digits")`.

    Args:
        config: a config, or the name or file of one.
        workdir: where checkpoints and logs are kept.
        overrides: as for `get_config`, where `config` is a name.
        allow_config_change: continue though the config is another than the run's.
        allow_data_change: continue though the data are.
        window: the steps to profile.

    Raises UserError: anything wrong with config, data or workdir.
    """
    if isinstance(config, Config) and overrides:
        raise UserError("overrides are for a config by name; change this one's fields instead")
    return train(
        config if isinstance(config, Config) else get_config(config, overrides),
        _path("workdir", workdir),
        allow_config_change=allow_config_change,
        allow_data_change=allow_data_change,
        window=window,
    )


def _whole(name: str, value: Any, *, least: int = -(2**63)) -> int:
    """Read an argument that is a whole number; raises UserError: it is none, or below `least`."""
    number = fields.conformed(int, name, value)
    if number < least:
        raise UserError(f"{name}={number} must be at least {least}")
    return number


def _path(name: str, value: Any) -> str | Path:
    """Return an argument that is a path; raises UserError: it is none."""
    if isinstance(value, str | Path):
        return value
    raise UserError(f"{name}={value!r} ({type(value).__name__}) must be a path")
