# SPDX-License-Identifier: Apache-2.0
"""A spike is measured against the losses before it; skipping needs something that looks."""

import numpy as np
import pytest

from vit_jax.config.tree import FaultsConfig, is_spike
from vit_jax.errors import UserError


def test_a_spike_is_sigmas_above_the_mean() -> None:
    losses = np.array([1.0, 3.0])  # mean 2, standard deviation 1
    assert is_spike(5.1, losses, 3.0)
    assert not is_spike(5.0, losses, 3.0)
    assert not is_spike(-9.0, losses, 3.0)


def test_losses_whose_variance_overflows_are_no_measure() -> None:
    losses = np.array([1e38, -1e38] * 4, np.float32)
    with np.errstate(over="ignore"):
        assert not is_spike(np.float32(3e38), losses, 1.0)


def test_spikes_that_nothing_looks_for_cannot_be_skipped() -> None:
    FaultsConfig(skip_spikes=True).check()
    FaultsConfig(spike_sigmas=0).check()
    with pytest.raises(UserError, match="spike_sigmas=0"):
        FaultsConfig(skip_spikes=True, spike_sigmas=0).check()
