# SPDX-License-Identifier: Apache-2.0
"""One file, one sweep: `vit_jax sweep run configs/sweeps/FILE.py --out=DIR`."""
