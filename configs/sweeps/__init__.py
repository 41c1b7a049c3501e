# SPDX-License-Identifier: Apache-2.0
"""One file, one sweep: `python -m vit_jax sweep run configs/sweeps/FILE.py --out=DIR`."""
