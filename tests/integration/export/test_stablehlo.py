# SPDX-License-Identifier: Apache-2.0
"""A StableHLO artifact gives the model's logits in a process that has jax alone."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import export

from tests.unit.inference.exported import assert_close, images, of_family, run_alone, trained
from tests.unit.models.tiny import TINY
from vit_jax.devices import hardware
from vit_jax.export import stablehlo as export_stablehlo
from vit_jax.export.quantize import MIN_SIZE, WeightDType, pack, unpack
from vit_jax.inference.forward import make_forward
from vit_jax.models import DType

_LOAD_ALL = """
import pathlib, jax, numpy as np
from jax import export
for file in pathlib.Path().glob("*.stablehlo"):
    model = jax.jit(export.deserialize(bytearray(file.read_bytes())).call)
    weights = dict(np.load(file.with_suffix(".weights.npz")))
    images = np.load(file.with_suffix(".npy"))
    logits = {str(n): np.asarray(model(weights, images[:n])) for n in (1, len(images))}
    np.savez(file.with_suffix(".npz"), **logits)
"""


@pytest.mark.slow
def test_every_family_at_two_batch_sizes_with_jax_alone(tmp_path: Path) -> None:
    for family in TINY:
        model, batch, _ = of_family(family)
        program, weights = export_stablehlo.serialize(model, model.variables)
        (tmp_path / f"{family}.stablehlo").write_bytes(program)
        (tmp_path / f"{family}.weights.npz").write_bytes(weights)
        np.save(tmp_path / f"{family}.npy", batch)
    run_alone(_LOAD_ALL, tmp_path)
    for family in TINY:
        _, batch, expected = of_family(family)
        found = np.load(tmp_path / f"{family}.npz")
        assert found["3"].dtype == np.float32
        assert_close(found["3"], expected)
        assert_close(found["1"], expected[:1])


def test_one_artifact_for_all_platforms() -> None:
    model, batch, _ = of_family("mixer")
    program, _ = export_stablehlo.serialize(model, model.variables)
    artifact = export.deserialize(bytearray(program))
    assert artifact.platforms == ("cpu", "cuda", "tpu")
    assert str(Path(__file__).parents[3]).encode() not in program, "paths of this machine"
    image = artifact.in_avals[-1]  # after the weights
    assert (image.dtype, image.shape[1:]) == (np.uint8, batch.shape[1:])
    assert export.is_symbolic_dim(image.shape[0])


# Large enough that the weights outweigh what else an .npz file holds.
WIDE = dataclasses.replace(TINY["vit"], dim=64, num_heads=4, mlp_dim=256)


def test_weights_are_stored_once_and_as_asked() -> None:
    model = trained(WIDE)
    sizes, total = {}, 4 * sum(leaf.size for leaf in jax.tree.leaves(model.variables))
    for dtype in WeightDType:
        packed = pack(model.variables, dtype)
        program, weights = export_stablehlo.serialize(model, packed)
        assert len(program) < 60_000
        sizes[dtype] = len(weights)
        run = export_stablehlo.runner(program, weights)
        rounded = dataclasses.replace(model, variables=unpack(packed))
        batch = images(model)
        assert_close(np.asarray(run(batch)), np.asarray(make_forward(rounded)(batch).logits))
    kernels = [leaf for leaf in jax.tree.leaves(model.variables["params"]) if leaf.ndim > 1]
    large = 4 * sum(leaf.size for leaf in kernels if leaf.size >= 2 * MIN_SIZE)
    assert 0 < sizes[WeightDType.FLOAT32] - total < 20_000
    saved = {dtype: sizes[WeightDType.FLOAT32] - size for dtype, size in sizes.items()}
    assert saved[WeightDType.BFLOAT16] == pytest.approx(large / 2, rel=0.05)
    assert saved[WeightDType.INT8] == pytest.approx(large * 3 / 4, rel=0.05)


def test_attention_is_not_chosen_for_the_device_of_this_process() -> None:
    cfg = dataclasses.replace(TINY["vit"], dtype=DType.BFLOAT16)  # which cuDNN would take
    model = trained(cfg)
    here = export_stablehlo.serialize(model, model.variables)
    with hardware.tracing_for(hardware.Target("gpu", capability=(9, 0))):
        assert export_stablehlo.serialize(model, model.variables) == here
