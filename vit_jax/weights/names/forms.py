# SPDX-License-Identifier: Apache-2.0
"""One form of a ViT's layers out of the several in which PyTorch's files hold them, and back.

The one form has q, k and v in one layer with one bias, SwiGLU in two layers, LayerScale as
`ls1.gamma`, and rotary frequencies in each block. Some of it is otherwise in timm's Eva and in the
files of EVA-02, DINOv2, DINOv3, RoPE-ViT, Perception Encoder and CLIP.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.models.facts import Form
from vit_jax.weights.files import WeightsFile
from vit_jax.weights.layout import Entry, Shape

# A tensor's shape, and what reads it.
View = tuple[Shape, Callable[[], np.ndarray]]
Take = Callable[[np.ndarray], np.ndarray]
_LAYERS = ("q", "k", "v")
_FREQUENCIES = ".attn.rope_freqs"


class _Views(dict[str, View]):
    """The tensors of a file, some of them made of others."""

    def __init__(self, source: WeightsFile) -> None:
        super().__init__()
        self.name = source.name
        for key, shape in source.shapes.items():
            self[key] = (shape, lambda key=key: source.read(key))

    def joined(self, key: str, parts: list[str]) -> None:
        """Replace tensors by their concatenation along the first axis."""
        views = [self.pop(part) for part in parts]
        shape = (sum(view[0][0] for view in views), *views[0][0][1:])
        self[key] = (shape, lambda: np.concatenate([read() for _, read in views]))

    def cut(self, key: str, parts: Mapping[str, Take]) -> None:
        """Replace a tensor by parts of it, each a function of the whole."""
        shape, read = self.pop(key)
        like = np.broadcast_to(np.float32(0), shape)  # of no memory
        for part, take in parts.items():
            self[part] = (take(like).shape, lambda take=take: take(read()))


def adapted(source: WeightsFile, entries: list[Entry]) -> WeightsFile:
    """Return a file in the form that a model's `entries` expect.

    Raises UserError: a bias of the keys where the model has none.
    """
    expected = {part.key: part.shape for e in entries for parts in e.layers for part in parts}
    if "embeds.proj.weight" in expected:
        source = as_native(source, expected)
    if dict(source.shapes) == expected:
        return source
    views = _Views(source)
    for step in (_scales, _fused, _key_bias, _gates, _frequencies, _tower, _maps):
        step(views, expected)
    shapes = {key: shape for key, (shape, _) in views.items()}
    return WeightsFile(source.name, shapes, lambda key: views[key][1]())


def as_native(source: WeightsFile, expected: Mapping[str, Shape]) -> WeightsFile:
    """Name a plain ViT's embedding as NaFlexVit does, so that one can go on from the other.

    The kernel of a convolution becomes rows of pixels; a table of a square grid of patches becomes
    that grid, and the positions of tokens before them are added to these.
    """
    if "patch_embed.proj.weight" not in source.shapes:
        return source
    views = _Views(source)
    for key in [key for key in views if key.startswith("patch_embed.proj.")]:
        flat = key.endswith(".weight") and len(views[key][0]) == 4
        views.cut(
            key,
            {f"embeds.{key.removeprefix('patch_embed.')}": _rows_of_pixels if flat else _same},
        )
    tokens = [key for key in ("cls_token", "reg_token") if key in views]
    for key in tokens:
        views[f"embeds.{key}"] = views.pop(key)
    shape = views["pos_embed"][0] if "pos_embed" in views else ()
    wanted = expected.get("embeds.pos_embed", ())
    if len(shape) == 3 and len(wanted) == 4:
        _spread_table(views, shape, [f"embeds.{key}" for key in tokens], wanted)
    shapes = {key: shape for key, (shape, _) in views.items()}
    return WeightsFile(source.name, shapes, lambda key: views[key][1]())


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _rows_of_pixels(kernel: np.ndarray) -> np.ndarray:
    return kernel.transpose(0, 2, 3, 1).reshape(len(kernel), -1)


def _spread_table(views: _Views, shape: Shape, tokens: list[str], wanted: Shape) -> None:
    count, before = shape[1], sum(views[key][0][1] for key in tokens)
    covered = next((n for n in (before, 0, 1) if _is_grid(count - n, wanted)), None)
    if covered is None:
        return
    patches = count - covered
    side = math.isqrt(patches)
    grid = wanted[1:3] if patches == wanted[1] * wanted[2] else (side, side)
    start = 0
    takes: dict[str, Take] = {}
    for key in tokens if covered else ():
        token, read = views[key]
        stop = start + token[1]
        if stop > covered:
            continue
        del views[key]
        takes[f"+{key}"] = lambda x, a=start, b=stop: x[:, a:b]
        views[f"={key}"], start = (token, read), stop
    takes["embeds.pos_embed"] = lambda x: x[:, covered:].reshape(1, *grid, -1)
    views.cut("pos_embed", takes)
    for key in tokens:
        if f"+{key}" in views:
            (token, read), (_, add) = views.pop(f"={key}"), views.pop(f"+{key}")
            views[key] = token, lambda a=read, b=add: a() + b()


def _is_grid(count: int, wanted: Shape) -> bool:
    return count > 0 and (count == wanted[1] * wanted[2] or math.isqrt(count) ** 2 == count)


def _scales(views: _Views, expected: Mapping[str, Shape]) -> None:
    for key in list(views):
        new = re.sub(r"\.gamma_([12])$", r".ls\1.gamma", key)
        if key not in expected and new in expected and new not in views:
            views[new] = views.pop(key)


def _fused(views: _Views, expected: Mapping[str, Shape]) -> None:
    """Join q, k and v, and the biases that are there."""
    for key in expected:
        found = re.fullmatch(r"(.*\.)qkv\.(weight|bias)", key)
        if found is None or key in views:
            continue
        start, kind = found.groups()
        spellings = [[f"{start}{one}_proj.{kind}" for one in _LAYERS]]
        if kind == "bias":
            spellings.append([f"{start}{one}_bias" for one in _LAYERS])
        for parts in spellings:
            there = [part for part in parts if part in views]
            shapes = {views[part][0] for part in there}
            if len(there) > 1 and len(shapes) == 1 and () not in shapes:
                views.joined(key, there)
                break


def _key_bias(views: _Views, expected: Mapping[str, Shape]) -> None:
    """Take the zeros of the keys out of a bias that the model has of queries and values alone."""
    for mask in [key for key in views if key.endswith(".qkv.bias_mask")]:
        bias = mask.removesuffix("_mask")
        if bias not in views or views[bias][0] != views[mask][0]:
            continue
        (shape, read), (_, read_mask) = views.pop(bias), views.pop(mask)
        # Its third of the keys is masked, and holds anything.
        views[bias] = shape, lambda a=read, b=read_mask: np.where(b() == 0, np.float32(0), a())
        if bias not in expected and not views[bias][1]().any():
            del views[bias]  # DINOv3's B, L and H+, of a model without
    for key, wanted in expected.items():
        if not key.endswith(".qkv.bias") or key not in views:
            continue
        shape = views[key][0]
        if len(shape) == len(wanted) == 1 and shape[0] % 3 == 0 and wanted[0] * 3 == shape[0] * 2:
            _drop_key_bias(views, key)


def _drop_key_bias(views: _Views, key: str) -> None:
    def without_keys(bias: np.ndarray) -> np.ndarray:
        q, k, v = np.split(bias, 3)
        if k.any():
            raise UserError(f"{views.name}: {key} has a bias of the keys; set model.key_bias=True")
        return np.concatenate([q, v])

    views.cut(key, {key: without_keys})


def _gates(views: _Views, expected: Mapping[str, Shape]) -> None:
    """Split the layer that gives SwiGLU's gate, first, and value."""
    for key in expected:
        whole = key.replace(".fc1_g.", ".fc1.")
        if whole != key and key not in views and whole in views and views[whole][0]:
            at, values = views[whole][0][0] // 2, key.replace(".fc1_g.", ".fc1_x.")
            views.cut(whole, {key: lambda x, at=at: x[:at], values: lambda x, at=at: x[at:]})


def _frequencies(views: _Views, expected: Mapping[str, Shape]) -> None:
    """Give each block its own of the frequencies (2, depth, ...)."""
    keys = [key for key in expected if key.endswith(_FREQUENCIES)]
    whole = next((key for key in ("rope.freqs", "freqs") if key in views), "")
    if not keys or not whole:
        return
    shape, each = views[whole][0], expected[keys[0]]
    same = math.prod(shape) == math.prod(each) * len(keys)
    if len(shape) > 2 and shape[:2] == (2, len(keys)) and same:
        takes = [lambda x, i=i: x[:, i].reshape(each) for i in range(len(keys))]
        views.cut(whole, dict(zip(keys, takes, strict=True)))


def _tower(views: _Views, expected: Mapping[str, Shape]) -> None:
    """Bring an image tower beside a text tower to the shapes of a ViT (OpenAI's, PE's)."""
    for key, rank in (("cls_token", 1), ("pos_embed", 2)):
        if key in views and key in expected and len(views[key][0]) == rank:
            shape = (*[1] * (3 - rank), *views[key][0])
            views.cut(key, {key: lambda x, shape=shape: x.reshape(shape)})
    for kind in ("weight", "bias"):
        key, q, kv = (f"attn_pool.{layer}.{kind}" for layer in ("qkv", "q", "kv"))
        if key in views and q in expected and views[key][0]:
            at = views[key][0][0] // 3
            views.cut(key, {q: lambda x, at=at: x[:at], kv: lambda x, at=at: x[at:]})
    shape = views["proj"][0] if "proj" in views else ()
    if "head.weight" in expected and "head.weight" not in views and len(shape) == 2:
        views.cut("proj", {"head.weight": np.transpose})
        views["head.bias"] = (shape[1:], lambda: np.zeros(shape[1:], np.float32))


def _maps(views: _Views, expected: Mapping[str, Shape]) -> None:
    """Bring what multiplies maps, a ConvNeXt's MLPs and response norms, to its rank here.

    timm's small ones hold 1x1 convolutions, the authors' files linear layers, and the scales and
    biases of a response norm as (1, 1, 1, C).
    """
    for key, shape in expected.items():
        is_ours = re.search(r"\.mlp\.(fc[12]|grn)\.(weight|bias)$", key)
        there = views[key][0] if is_ours and key in views else shape
        if there != shape and _plain(there) == _plain(shape):
            views.cut(key, {key: lambda x, shape=shape: x.reshape(shape)})
    # What masked autoencoding trains has no last norm; timm, too, leaves that as it starts.
    if "head.norm.weight" in expected and not any(re.match("head|norm", key) for key in views):
        for kind, fill in (("weight", np.ones), ("bias", np.zeros)):
            if (shape := expected.get(f"head.norm.{kind}")) is not None:
                views[f"head.norm.{kind}"] = shape, lambda s=shape, f=fill: f(s, np.float32)


def _plain(shape: Shape) -> Shape:
    """Return a shape without the ones of a 1x1 convolution, or of a factor of maps."""
    return tuple(size for size in shape if size != 1)


def written(state: Mapping[str, np.ndarray], cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Return a state_dict in the form that timm's model of a config has."""
    form = models.family(cfg).timm_form(cfg)
    frequencies = [key for key in state if key.endswith(_FREQUENCIES)]
    found = dict(
        piece for key in state if key not in frequencies for piece in _pieces(key, state, form)
    )
    if frequencies:
        found["rope.freqs"] = np.stack([state[key] for key in frequencies], axis=1)
    return found


def _pieces(
    key: str, state: Mapping[str, np.ndarray], form: Form
) -> Iterable[tuple[str, np.ndarray]]:
    """Return what a tensor becomes."""
    value = state[key]
    if form.gammas and key.endswith(".gamma"):
        return [(re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", key), value)]
    if form.packed and ".fc1_x." in key:
        return []
    if form.packed and ".fc1_g." in key:
        both = value, state[key.replace(".fc1_g.", ".fc1_x.")]
        return [(key.replace(".fc1_g.", ".fc1."), np.concatenate(both))]
    start, found, kind = key.partition(".qkv.")
    is_split = kind == "bias" and form.split_bias
    if not found or not (form.separate or is_split):
        return [(key, value)]
    layers = ("q", "v") if is_split else _LAYERS
    end = f"_proj.{kind}" if form.separate else "_bias"
    names = (f"{start}.{layer}{end}" for layer in layers)
    return zip(names, np.split(value, len(layers)), strict=True)
