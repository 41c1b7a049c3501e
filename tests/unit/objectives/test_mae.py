# SPDX-License-Identifier: Apache-2.0
"""MAE against the authors' numbers, a calculation by hand, and what the encoder sees."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import Told, refused_as, refused_by
from vit_jax import models, objectives, trees
from vit_jax.data import DataConfig
from vit_jax.errors import UserError
from vit_jax.objectives import Context, Mae, MaeConfig, hiding
from vit_jax.objectives.mae import Masks, masks
from vit_jax.weights import load
from vit_jax.weights.apply import fill, in_memory
from vit_jax.weights.layout import Own
from vit_jax.weights.names.timm import entries, is_ignored

GOLDEN = Path(__file__).parents[2] / "golden" / "mae.npz"
CONTEXT = Context(frozen={}, model_state={}, ema=None, objective=None, step=0)


def _model(**fields: Any) -> Any:
    sizes = {"patch": (8, 8), "dim": 48, "depth": 2, "num_heads": 3, "mlp_dim": 192}
    given = {"num_classes": 0, "image_size": (32, 32), **sizes, **fields}
    return models.variant("mae_b16", **given)


def _objective(model: Any = None, **fields: Any) -> Mae:
    sizes = {"decoder_dim": 32, "decoder_depth": 1, "decoder_heads": 2}
    cfg = MaeConfig(**{**sizes, **fields})
    found = objectives.create(cfg, model or _model(), DataConfig())
    assert isinstance(found, Mae)
    return found


def _golden() -> tuple[Mae, Any, dict[str, np.ndarray]]:
    with np.load(GOLDEN) as file:
        golden = {key: file[key] for key in file.files}
    objective = _objective()
    abstract = jax.eval_shape(objective.init, jax.random.key(0))[0]
    own = Own({name: abstract[name] for name in objective.own_parameters}, objective.own_heads)
    state = {k.removeprefix("w/"): v for k, v in golden.items() if k.startswith("w/")}
    tables = {name: state.pop(name) for name in ("pos_embed", "decoder_pos_embed")}
    found = fill(
        [*entries(objective.model), *entries(objective.model, own)],
        in_memory(state),
        is_ignored=is_ignored,
    )
    return objective, trees.nest(found)["params"], {**golden, **tables}


def test_the_authors_mask_prediction_and_loss() -> None:
    objective, params, golden = _golden()
    image = jnp.asarray(golden["x"].transpose(0, 2, 3, 1))
    drawn = masks(jnp.argsort(jnp.asarray(golden["noise"]), axis=1), 4)
    np.testing.assert_array_equal(drawn.hidden, golden["mask"])
    pixels, _ = objective._decoded(params, {}, image, drawn, jax.random.key(0), train=True)
    np.testing.assert_allclose(pixels, golden["pred"], atol=5e-5)
    batch = {"image": image, **drawn._asdict()}
    loss, _ = objective.loss(params, CONTEXT, batch, jax.random.key(0))
    assert float(loss) == pytest.approx(float(golden["loss"]), abs=5e-5)


def test_the_loss_by_hand() -> None:
    objective = _objective(_model(image_size=(16, 8)), share=0.5, norm_pix=True)
    rng = np.random.default_rng(0)
    image = rng.normal(size=(1, 16, 8, 3)).astype(np.float32)
    pixels = rng.normal(size=(1, 2, 192)).astype(np.float32)
    drawn = Masks(jnp.asarray([[1]]), jnp.asarray([[1, 0]]))  # patch 0 is hidden
    true = image[0, :8].reshape(-1).astype(np.float64)
    target = (true - true.mean()) / np.sqrt(true.var(ddof=1) + 1e-6)
    expected = ((pixels[0, 0] - target) ** 2).mean()
    found = objective._errors(jnp.asarray(pixels), jnp.asarray(image), drawn)
    np.testing.assert_allclose(found, [expected], rtol=1e-6)


def test_patches_go_and_come_back() -> None:
    model = _model(image_size=(16, 24))
    image = np.random.default_rng(0).normal(size=(2, 16, 24, 3)).astype(np.float32)
    cut = hiding.patches(jnp.asarray(image), model)
    np.testing.assert_array_equal(cut[1, 4], image[1, 8:, 8:16].reshape(-1))
    np.testing.assert_array_equal(hiding.image_of(cut, model), image)


def test_three_quarters_are_hidden_anew_at_each_step() -> None:
    objective = _objective()
    image = jnp.zeros((8, 32, 32, 3), jnp.uint8)
    first, second = (objective.prepare({"image": image}, jax.random.key(i)) for i in range(2))
    drawn = Masks(first["kept"], first["order"])
    assert drawn.kept.shape == (8, 4)
    np.testing.assert_array_equal(drawn.hidden.sum(axis=1), 12)
    hidden = np.asarray(drawn.hidden)
    assert not np.take_along_axis(hidden, np.asarray(drawn.kept), axis=1).any()
    assert (np.asarray(first["kept"]) != np.asarray(second["kept"])).any()
    assert len({tuple(row) for row in np.asarray(first["order"]).tolist()}) == 8


def test_cost_falls_with_the_hidden_share() -> None:
    costs = {}
    for share in (0.25, 0.75):
        objective = _objective(share=share)
        variables = {"params": jax.eval_shape(objective.init, jax.random.key(0))[0]}
        costs[share] = objective.flops(variables)
    # By hand: patches are embedded before they are left out; the decoder sees all of them.
    d, e, n = 48, 32, 16

    def blocks(width: int, tokens: int) -> int:
        return 2 * tokens * 12 * width * width + 4 * tokens * tokens * width

    for share, kept in ((0.25, 12), (0.75, 4)):
        encoder = 2 * n * 192 * d + 2 * blocks(d, kept + 1)
        decoder = 2 * (kept + 1) * d * e + blocks(e, n + 1) + 2 * n * e * 192
        assert costs[share] == 3 * (encoder + decoder)


def test_parameters_of_the_base_model() -> None:
    objective = objectives.create(
        MaeConfig(), models.variant("mae_b16", num_classes=0), DataConfig()
    )
    params = jax.eval_shape(objective.init, jax.random.key(0))[0]
    own = {name: params.pop(name) for name in objective.own_parameters}
    # reference/next.md section 2.2; 151,296 of the encoder's published number are fixed positions.
    assert trees.num_params(params) == 85_798_656 - 151_296
    assert trees.num_params(own) == 26_008_320


@pytest.mark.parametrize(
    ("fields", "model", "named"),
    [
        ({"share": 0.999}, {}, "1 - objective.share"),
        ({"decoder_dim": 30}, {}, "objective.decoder_dim=30"),
        ({"decoder_heads": 5}, {}, ("models.base.check_heads", "objective.decoder_heads")),
        ({}, {"fc_norm": True, "pool": "gap"}, "model.fc_norm"),
        ({}, {"window": 2}, "model.window=2 needs the grid of all patches, and a masked auto"),
        ({}, {"axial": True}, "model.axial=True needs the grid of all patches, and a masked auto"),
        ({}, {"patch_drop_rate": 0.5}, "model.patch_drop_rate=0.5 does not go with a masked auto"),
    ],
)
def test_refusals(fields: dict, model: dict, named: Told) -> None:
    sizes = {"decoder_dim": 32, "decoder_depth": 1, "decoder_heads": 2}
    with refused_as(named):
        MaeConfig(**{**sizes, **fields}).check(_model(**model), DataConfig())


def test_an_encoder_file_loads_in_one_line(tmp_path: Path) -> None:
    """The authors' file holds the fixed table; a full one the decoder too: both are an encoder."""
    from safetensors.numpy import save_file

    with np.load(GOLDEN) as file:
        state = {k[2:]: file[k] for k in file.files if k.startswith("w/")}
    beside = ("decoder", "mask_token")
    encoder = {k: v for k, v in state.items() if not k.startswith(beside)}
    learned = dataclasses.replace(_model(), pos_embed=models.layers.posemb.PosEmbed.LEARNED)
    for name, tensors in (("encoder", encoder), ("full", state)):
        path = tmp_path / f"{name}.safetensors"
        save_file(tensors, path)
        fixed = load(f"timm:{path}", _model())
        assert "pos_embed" not in fixed["params"]
        found = load(f"timm:{path}", learned)
        np.testing.assert_array_equal(found["params"]["pos_embed"], state["pos_embed"])
    state["pos_embed"] = state["pos_embed"] + 0.1
    save_file(state, tmp_path / "other.safetensors")
    with refused_by("weights.resize._without"):
        load(f"timm:{tmp_path / 'other.safetensors'}", _model())


def test_a_model_without_tokens_is_refused() -> None:
    told = "^a masked autoencoder hides patches of a ViT, not of a Swin; choose a ViT$"
    with pytest.raises(UserError, match=told):
        MaeConfig().check(models.variant("swin_t"), DataConfig())
