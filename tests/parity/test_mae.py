# SPDX-License-Identifier: Apache-2.0
"""MAE's loss and all gradients against a plain PyTorch transcription of arXiv:2111.06377."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models, objectives, trees
from vit_jax.data import DataConfig
from vit_jax.models import ViTConfig
from vit_jax.objectives import Context, Mae, MaeConfig
from vit_jax.objectives.mae import masks
from vit_jax.weights.apply import fill, in_memory
from vit_jax.weights.layout import Own
from vit_jax.weights.names.timm import entries, is_ignored

torch = pytest.importorskip("torch")
GOLDEN = Path(__file__).parents[1] / "golden" / "mae.npz"


def _block(x: Any, w: dict[str, Any], name: str, heads: int) -> Any:
    linear, norm = torch.nn.functional.linear, torch.nn.functional.layer_norm

    def layer(y: Any, key: str) -> Any:
        return linear(y, w[f"{name}.{key}.weight"], w[f"{name}.{key}.bias"])

    def normed(y: Any, key: str) -> Any:
        scale, bias = w[f"{name}.{key}.weight"], w[f"{name}.{key}.bias"]
        return norm(y, scale.shape, scale, bias, 1e-6)

    batch, tokens, dim = x.shape
    qkv = layer(normed(x, "norm1"), "attn.qkv").reshape(batch, tokens, 3, heads, dim // heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    attention = (q @ k.transpose(-2, -1) / (dim // heads) ** 0.5).softmax(dim=-1)
    x = x + layer((attention @ v).transpose(1, 2).reshape(batch, tokens, dim), "attn.proj")
    hidden = torch.nn.functional.gelu(layer(normed(x, "norm2"), "mlp.fc1"))
    return x + layer(hidden, "mlp.fc2")


def _loss(w: dict[str, Any], x: Any, noise: Any, kept: int, heads: tuple[int, int]) -> Any:
    linear, norm = torch.nn.functional.linear, torch.nn.functional.layer_norm
    side = w["patch_embed.proj.weight"].shape[-1]
    conv = torch.nn.functional.conv2d
    tokens = conv(x, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=side)
    tokens = tokens.flatten(2).transpose(1, 2) + w["pos_embed"][:, 1:]
    shuffle = noise.argsort(dim=1)
    order = shuffle.argsort(dim=1)
    chosen = shuffle[:, :kept, None]
    tokens = tokens.gather(1, chosen.expand(-1, -1, tokens.shape[-1]))
    first = (w["cls_token"] + w["pos_embed"][:, :1]).expand(len(x), -1, -1)
    y = torch.cat([first, tokens], dim=1)
    for i in range(2):
        y = _block(y, w, f"blocks.{i}", heads[0])
    y = norm(y, y.shape[-1:], w["norm.weight"], w["norm.bias"], 1e-6)
    y = linear(y, w["decoder_embed.weight"], w["decoder_embed.bias"])
    hidden = w["mask_token"].expand(len(x), order.shape[1] - kept, -1)
    rest = torch.cat([y[:, 1:], hidden], dim=1)
    rest = rest.gather(1, order[:, :, None].expand(-1, -1, y.shape[-1]))
    y = torch.cat([y[:, :1], rest], dim=1) + w["decoder_pos_embed"]
    y = _block(y, w, "decoder_blocks.0", heads[1])
    y = norm(y, y.shape[-1:], w["decoder_norm.weight"], w["decoder_norm.bias"], 1e-6)
    found = linear(y, w["decoder_pred.weight"], w["decoder_pred.bias"])[:, 1:]
    grid = x.shape[-1] // side
    target = x.reshape(len(x), 3, grid, side, grid, side).permute(0, 2, 4, 3, 5, 1)
    target = target.reshape(len(x), grid * grid, -1)
    target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6).sqrt()
    errors = ((found - target) ** 2).mean(dim=-1)
    mask = (order >= kept).to(errors.dtype)
    return (errors * mask).sum() / mask.sum()


def test_loss_and_gradients_are_pytorchs() -> None:
    with np.load(GOLDEN) as file:
        golden = {key: file[key] for key in file.files}
    state = {k.removeprefix("w/"): v for k, v in golden.items() if k.startswith("w/")}
    w = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in state.items()}
    x, noise = (torch.tensor(golden[name]).double() for name in ("x", "noise"))
    theirs = _loss(w, x, noise, 4, (3, 2))
    theirs.backward()
    assert float(theirs) == pytest.approx(float(golden["loss"]), abs=1e-5)

    sizes = {"patch": (8, 8), "dim": 48, "depth": 2, "num_heads": 3, "mlp_dim": 192}
    model: ViTConfig = models.variant("mae_b16", num_classes=0, image_size=(32, 32), **sizes)
    cfg = MaeConfig(decoder_dim=32, decoder_depth=1, decoder_heads=2)
    objective = objectives.create(cfg, model, DataConfig())
    assert isinstance(objective, Mae)
    abstract = jax.eval_shape(objective.init, jax.random.key(0))[0]
    own = Own({name: abstract[name] for name in objective.own_parameters}, objective.own_heads)
    wanted = [*entries(model), *entries(model, own)]

    def ours(arrays: dict[str, np.ndarray]) -> Any:
        fixed = ("pos_embed", "decoder_pos_embed")
        kept = {name: value for name, value in arrays.items() if name not in fixed}
        return trees.nest(fill(wanted, in_memory(kept), is_ignored=is_ignored))["params"]

    drawn = masks(jnp.argsort(jnp.asarray(golden["noise"]), axis=1), 4)
    batch = {"image": jnp.asarray(golden["x"].transpose(0, 2, 3, 1)), **drawn._asdict()}
    context = Context(frozen={}, model_state={}, ema=None, objective=None, step=0)

    def loss(params: Any) -> Any:
        return objective.loss(params, context, batch, jax.random.key(0))[0]

    value, grads = jax.jit(jax.value_and_grad(loss))(ours(state))
    assert float(value) == pytest.approx(float(theirs), abs=5e-5)
    expected = ours({k: v.grad.numpy() for k, v in w.items() if v.grad is not None})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), grads, expected)
