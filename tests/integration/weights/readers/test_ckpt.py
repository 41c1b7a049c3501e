# SPDX-License-Identifier: Apache-2.0
"""Weights out of a run's checkpoints: the right step, the right arrays, all of them intact."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.models.tiny import TINY
from tests.unit.weights.readers.test_ckpt import VIT
from tests.unit.weights.runs import assert_equal, save
from vit_jax import models, trees, weights
from vit_jax.checkpoints import Mode, storage
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.errors import UserError
from vit_jax.models.layers.pool import Pool
from vit_jax.train.state import TrainState
from vit_jax.weights import resize
from vit_jax.weights.apply import OtherHead
from vit_jax.weights.readers.ckpt import Checkpoint
from vit_jax.weights.resize import ResizeRule


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, TrainState]]:
    workdir = tmp_path_factory.mktemp("run")
    return workdir, save(workdir, VIT, {1: 0.5, 2: 0.9, 3: None}, with_ema=True)


@pytest.mark.parametrize(
    "where, step",
    [("", 2), ("@1", 1), ("@3", 3), ("@best", 2), ("@latest", 3), ("/checkpoints", 2)],
)
def test_step(run: tuple[Path, dict[int, TrainState]], where: str, step: int) -> None:
    workdir, states = run
    assert_equal(weights.load(f"ckpt:{workdir}{where}", VIT), states[step].params)


def test_without_a_best_it_is_the_latest(tmp_path: Path) -> None:
    states = save(tmp_path / "a", VIT, {1: 0.5, 2: 0.1}, keep_best=0)
    assert_equal(weights.load(f"ckpt:{tmp_path / 'a'}", VIT), states[2].params)
    assert_equal(weights.load(f"ckpt:{tmp_path / 'a'}@best", VIT), states[1].params)
    states = save(tmp_path / "b", VIT, {1: None, 2: None})
    assert_equal(weights.load(f"ckpt:{tmp_path / 'b'}", VIT), states[2].params)
    states = save(tmp_path / "c", VIT, {1: 0.1, 2: 0.5}, mode=Mode.MIN)
    assert_equal(weights.load(f"ckpt:{tmp_path / 'c'}", VIT), states[1].params)


def test_the_moving_average(run: tuple[Path, dict[int, TrainState]], tmp_path: Path) -> None:
    workdir, states = run
    loaded = weights.load(f"ckpt:{workdir}@2", VIT, ema=True)
    assert_equal(loaded, states[2].ema["params"])
    save(tmp_path, VIT, {1: None})
    with pytest.raises(UserError, match="holds no moving average: the run had ema_decay=0"):
        weights.load(f"ckpt:{tmp_path}", VIT, ema=True)


def test_statistics_of_batch_norm_come_along(tmp_path: Path) -> None:
    states = save(tmp_path, TINY["regnet"], {1: None}, with_ema=True)
    loaded = weights.load(f"ckpt:{tmp_path}", TINY["regnet"])
    assert_equal(loaded, states[1].params, states[1].model_state)
    average = dict(states[1].ema)
    loaded = weights.load(f"ckpt:{tmp_path}", TINY["regnet"], ema=True)
    assert_equal(loaded, average.pop("params"), average)


def test_only_what_the_model_holds_is_read(
    run: tuple[Path, dict[int, TrainState]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    original = storage.load

    def load(path: Path, abstract: Any, record: Any) -> Any:
        names.extend(name for name, _ in trees.named_leaves(abstract))
        return original(path, abstract, record)

    monkeypatch.setattr(storage, "load", load)
    weights.load(f"ckpt:{run[0]}", VIT)
    assert {name.split("/")[0] for name in names} == {"params"}
    assert len(names) == len(set(names)) == len(jax.tree.leaves(models.abstract(VIT)))


def test_a_state_saved_on_eight_devices(tmp_path: Path) -> None:
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    states = save(tmp_path, VIT, {1: None}, mesh=mesh)
    assert not states[1].params["head"]["kernel"].sharding.is_fully_replicated
    assert_equal(weights.load(f"ckpt:{tmp_path}", VIT), states[1].params)


def test_another_image_size_and_patch(run: tuple[Path, dict[int, TrainState]]) -> None:
    workdir, states = run
    table = np.asarray(states[2].params["pos_embed"])
    grid = table[0, 1:].reshape(2, 2, -1)
    for rule, matrix in (
        (ResizeRule.AUTO, resize.bicubic_antialiased),
        (ResizeRule.OFFICIAL, resize.bicubic),
    ):
        larger = dataclasses.replace(VIT, image_size=(12, 20))
        loaded = weights.load(f"ckpt:{workdir}", larger, resize=rule)["params"]
        expected = resize.resize_grid(grid, (3, 5), matrix).reshape(15, -1)
        np.testing.assert_allclose(loaded["pos_embed"][0, 1:], expected, atol=1e-6)
    coarser = dataclasses.replace(VIT, image_size=(16, 16), patch=(8, 8))
    loaded = weights.load(f"ckpt:{workdir}", coarser)["params"]
    np.testing.assert_array_equal(loaded["pos_embed"], table)
    kernel = np.asarray(states[2].params["patch_embed"]["kernel"])
    expected = resize.resize_patch(kernel, (8, 8), resize.bicubic_antialiased)
    np.testing.assert_allclose(loaded["patch_embed"]["kernel"], expected, atol=1e-6)


def test_a_patch_as_large_as_the_model_is_wide(tmp_path: Path) -> None:
    fine = dataclasses.replace(VIT, patch=(8, 8), image_size=(16, 16))
    states = save(tmp_path, fine, {1: None})
    wide = dataclasses.replace(fine, patch=(16, 16), image_size=(32, 32))
    loaded = weights.load(f"ckpt:{tmp_path}", wide)["params"]["patch_embed"]["kernel"]
    kernel = np.asarray(states[1].params["patch_embed"]["kernel"])
    expected = resize.resize_patch(kernel, (16, 16), resize.bicubic_antialiased)
    np.testing.assert_allclose(loaded, expected, atol=1e-6)


def test_a_grid_of_as_many_patches_is_resized_too(tmp_path: Path) -> None:
    flat = dataclasses.replace(VIT, image_size=(8, 32))
    states = save(tmp_path, flat, {1: None})
    square = dataclasses.replace(VIT, image_size=(16, 16))
    loaded = weights.load(f"ckpt:{tmp_path}", square)["params"]["pos_embed"]
    grid = np.asarray(states[1].params["pos_embed"])[0, 1:].reshape(2, 8, -1)
    expected = resize.resize_grid(grid, (4, 4), resize.bicubic_antialiased).reshape(16, -1)
    np.testing.assert_allclose(loaded[0, 1:], expected, atol=1e-6)


def test_windows_of_another_size(tmp_path: Path) -> None:
    swin = dataclasses.replace(TINY["swin"], image_size=(64, 64), window=(4,))
    states = save(tmp_path, swin, {1: None})
    larger = dataclasses.replace(swin, image_size=(96, 96), window=(6,))
    loaded = weights.load(f"ckpt:{tmp_path}", larger)["params"]
    name = ("stage0", "block1", "attn", "rel_pos_bias")
    old, new = states[1].params, loaded
    for key in name:
        old, new = old[key], new[key]
    grid = np.asarray(old).reshape(7, 7, -1)
    expected = resize.resize_grid(grid, (11, 11), resize.geometric).reshape(121, -1)
    np.testing.assert_allclose(new, expected, atol=1e-6)


def test_another_model_is_refused_by_name(run: tuple[Path, dict[int, TrainState]]) -> None:
    workdir, states = run
    more = dataclasses.replace(VIT, num_classes=7)
    with refused_by("weights.apply._check_keys", kind=OtherHead) as other:
        weights.load(f"ckpt:{workdir}", more)
    assert "head/kernel: in the file [16, 3], here [16, 7]" in str(other.value)
    assert (other.value.patterns, other.value.lacking) == (("^head",), False)
    loaded = weights.load(f"ckpt:{workdir}", more, skip=("head/.*",))["params"]
    np.testing.assert_array_equal(loaded["norm"]["scale"], states[2].params["norm"]["scale"])
    assert loaded["head"]["kernel"].shape == (16, 7)
    with refused_by("weights.apply._check_keys") as caught:
        weights.load(f"ckpt:{workdir}", dataclasses.replace(VIT, depth=3))
    assert not isinstance(caught.value, OtherHead)
    with refused_by("weights.apply._check_keys"):
        weights.load(f"ckpt:{workdir}", dataclasses.replace(VIT, class_token=False, pool=Pool.GAP))
    with refused_by("weights.resize._table"):
        weights.load(f"ckpt:{workdir}", dataclasses.replace(VIT, pos_embed_prefix=False))


def test_damage_is_refused_by_name(run: tuple[Path, dict[int, TrainState]], tmp_path: Path) -> None:
    shutil.copytree(run[0], tmp_path / "run")
    step = tmp_path / "run" / "checkpoints" / "2"
    data = max((f for f in step.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
    raw = data.read_bytes()
    refused = []
    for at in range(len(raw) // 16, len(raw), len(raw) // 8):
        flipped = bytearray(raw)
        flipped[at] ^= 16
        data.write_bytes(flipped)
        try:
            loaded = weights.load(f"ckpt:{tmp_path}/run@2", VIT)
        except UserError as error:
            refused.append(str(error))
        else:  # the byte is of the optimizer's state
            assert_equal(loaded, run[1][2].params)
    assert refused
    for text in refused:
        assert "2 is unusable: params/" in text
        assert text.endswith("other steps there: 1, 3")
    (step / "_CHECKPOINT_METADATA").write_text("{}")
    with pytest.raises(UserError, match="2 is unusable: its metadata is damaged"):
        weights.load(f"ckpt:{tmp_path}/run@2", VIT)
    # The best of those that can be ranked.
    assert Checkpoint(f"{tmp_path}/run").name.endswith("checkpoints/1")


def test_reading_changes_nothing(tmp_path: Path) -> None:
    save(tmp_path, VIT, {1: None})
    leftover = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp-0"
    leftover.mkdir()  # a save of the run itself, under way
    before = sorted(tmp_path.rglob("*"))
    weights.load(f"ckpt:{tmp_path}", VIT)
    assert sorted(tmp_path.rglob("*")) == before
