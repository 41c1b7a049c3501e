# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.checkpoints.manifest import (
    Damaged,
    Inaccessible,
    Manifest,
    check_structure,
    describe,
    digests,
    examine,
    on_all_processes,
    pack,
    unpack,
)
from vit_jax.errors import NonFinite, UserError


def _reference(words: np.ndarray) -> int:
    flat = words.astype(np.uint64).ravel()
    return int((flat * (2 * np.arange(flat.size, dtype=np.uint64) + 1)).sum() % 2**32)


def test_value_is_the_documented_sum():
    x = jax.random.normal(jax.random.key(0), (5, 7, 3))
    assert digests({"a": x})["a"] == _reference(np.asarray(x).view(np.uint32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "int8", "uint8"])
def test_flip_of_any_bit_of_any_element_is_seen(dtype):
    both = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    where = NamedSharding(both, P())  # of several devices it is compiled
    x = np.asarray(jnp.arange(12).reshape(3, 4).astype(dtype))
    before = digests(x)
    for i in range(x.nbytes * 8):
        raw = bytearray(x.tobytes())
        raw[i // 8] ^= 1 << (i % 8)
        flipped = np.frombuffer(bytes(raw), x.dtype).reshape(x.shape)
        assert digests(flipped) != before
        for device in (None, where):
            assert digests(jax.device_put(flipped, device)) == digests(flipped), "of the host"


@pytest.mark.parametrize("size", [2**16, 2**16 + 1, 3 * 2**16 - 5])
def test_blocks_of_a_large_array_add_up(size):
    x = np.random.default_rng(0).integers(0, 2**32, size, np.uint32)
    assert digests({"a": x})["a"] == digests({"a": jnp.asarray(x)})["a"] == _reference(x)
    x = x.view(np.float32)
    x[~np.isfinite(x)] = 0
    last = x.copy()
    last[-1] = np.inf
    assert examine({"a": x})[1] == []
    assert examine({"a": last})[1] == ["a"]


def test_bools_keys_scalars_and_exchanged_elements():
    key = jax.random.key(7)
    tree = {"flag": jnp.array([True, False]), "rng": key, "step": jnp.int32(3)}
    sums = digests(tree)
    assert sums["flag"] == 1
    assert sums["step"] == 3
    assert sums["rng"] == _reference(np.asarray(jax.random.key_data(key)))
    assert digests({"flag": jnp.array([False, True])})["flag"] != sums["flag"]
    on_host = {"flag": np.array([True, False]), "step": np.array(3, np.int32)}
    assert digests(on_host).items() < sums.items()


def test_64_bit_values_count_both_words():
    with jax.enable_x64(True):
        low, high = np.array([1.0 + 2**-50]), np.array([1.0 + 2**-2])
        one = digests({"a": np.array([1.0])})
        assert digests({"a": low}) != one
        assert digests({"a": high}) != one
        assert digests({"a": jnp.asarray(low)}) == digests({"a": low})


def test_no_leaves():
    assert digests({"empty": {}, "none": None}) == {}


@pytest.mark.parametrize("spec", [P("x"), P(None, "y"), P("x", "y"), P(("x", "y")), P()])
def test_sharding_does_not_matter(spec):
    x = jax.random.normal(jax.random.key(0), (16, 8), jnp.bfloat16)
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    assert digests({"a": jax.device_put(x, NamedSharding(mesh, spec))}) == digests({"a": x})


def test_leaves_on_different_devices():
    a, b = (jax.device_put(jnp.ones(3), d) for d in jax.devices()[:2])
    sums = digests({"a": a, "b": b})
    assert sums["a"] == sums["b"]


def test_what_no_run_has_written_is_damaged():
    def packed(kind="float32", **metadata):
        return pack(Manifest({"params/x": (kind, [2], 7)}, metadata, {"val/top1": 0.5}))

    for kind in ("float32", "bfloat16", "key<fry>", "bool", "uint32"):
        assert unpack(packed(kind)).leaves["params/x"][0] == kind
    good = {"config": {"checkpoint": {"metric": "val/top1"}}, "own_parameters": ["decoder"]}
    assert unpack(packed(**good)).metadata == good
    bad = [packed(kind) for kind in ("object", "garbage", "M8[ns]", 3, ["float32"], "U4")]
    bad += [packed(config={"checkpoint": value}) for value in (3, None, [], "max")]
    bad += [packed(config={"checkpoint": {"metric": value}}) for value in (3, None, ["a"])]
    bad += [packed(own_parameters=value) for value in (3, None, "abc", [1])]
    for each in bad:
        with pytest.raises(Damaged, match="its metadata is damaged"):
            unpack(each)


@pytest.mark.parametrize("mine", [0, 1, 2])
@pytest.mark.parametrize("other", [0, 1, 2])
def test_all_processes_raise_what_one_finds(mine, other, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    gather = lambda x: np.asarray([int(x), other])  # noqa: E731
    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    kinds = (None, Damaged, Inaccessible)

    def read():
        if mine:
            raise kinds[mine]("mine")
        return "read"

    if not mine and not other:
        assert on_all_processes(read) == "read"
        return
    with pytest.raises(kinds[max(mine, other)]) as caught:
        on_all_processes(read)
    assert ("another process" in str(caught.value)) == (other > mine)


def test_another_structure_is_named_by_what_differs():
    leaves = {name: ("float32", [64, 64], 0) for name in ("params/kernel", "params/bias")}
    manifest = Manifest(leaves, {}, {})
    wanted = {"params": {name: jnp.zeros((64, 64)) for name in ("kernel", "bias")}}
    check_structure(manifest, wanted, Path("runs/x/checkpoints/2"))
    wanted["params"]["kernel"] = jnp.zeros((64, 32))
    changed = "params/kernel: float32[64, 64] saved, float32[64, 32] wanted"
    added = "ema/kernel: nothing saved, float32[2] wanted"
    for more, told in (
        ({}, changed),
        ({"ema": {"kernel": jnp.zeros(2)}}, f"{added}; {changed}"),
    ):
        with pytest.raises(UserError) as caught:
            check_structure(manifest, wanted | more, Path("runs/x/checkpoints/2"))
        assert str(caught.value) == (
            "runs/x/checkpoints/2 holds what another model, optimizer, ema_decay or "
            f"faults.skip_spikes needs: {told}. Go back to the config it was trained with, or "
            "choose another workdir and begin with its weights: init.weights=ckpt:runs/x"
        )


def test_a_state_that_is_not_finite_is_not_described():
    state = {"a": jnp.array([1.0, jnp.inf]), "b": jnp.ones(2), "c": jnp.array([jnp.nan])}
    with pytest.raises(
        NonFinite, match=r"^a; c overflowed to NaN or infinity, so no checkpoint is"
    ):
        describe(state, {}, {})
