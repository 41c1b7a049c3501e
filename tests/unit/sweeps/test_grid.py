# SPDX-License-Identifier: Apache-2.0
import pytest

from vit_jax.errors import UserError
from vit_jax.sweeps import grid


def test_a_product_takes_every_combination_in_order() -> None:
    axes = grid.axis("model.dim", (64, 128)), grid.axis("optim.lr", (0.1, 0.2))
    assert list(grid.product(*axes)) == [
        {"model.dim": 64, "optim.lr": 0.1},
        {"model.dim": 64, "optim.lr": 0.2},
        {"model.dim": 128, "optim.lr": 0.1},
        {"model.dim": 128, "optim.lr": 0.2},
    ]


def test_zipped_axes_go_together() -> None:
    sizes = grid.zipped(grid.axis("model.dim", (64, 128)), grid.axis("model.mlp_dim", (256, 512)))
    assert list(sizes) == [
        {"model.dim": 64, "model.mlp_dim": 256},
        {"model.dim": 128, "model.mlp_dim": 512},
    ]
    with pytest.raises(UserError, match="axes of one length, not 2, 1"):
        list(grid.zipped(grid.axis("a", (1, 2)), grid.axis("b", (1,))))


def test_a_chain_is_one_after_the_other() -> None:
    assert list(grid.chain(grid.axis("a", (1,)), grid.axis("b", (2, 3)))) == [
        {"a": 1},
        {"b": 2},
        {"b": 3},
    ]


def test_log_spaced_numbers_can_be_typed_again() -> None:
    assert grid.log_spaced(1e-4, 1e-2, 5) == [1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2]
    assert grid.log_spaced(0.3, 3.0, 1) == [0.3]


def test_two_axes_of_one_field_are_a_mistake() -> None:
    with pytest.raises(UserError, match=r"two axes of a sweep set optim\.lr"):
        list(grid.product(grid.axis("optim.lr", (0.1,)), grid.axis("optim.lr", (0.2,))))
