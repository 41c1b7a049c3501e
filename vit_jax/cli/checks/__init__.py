# SPDX-License-Identifier: Apache-2.0
"""What `vit_jax doctor` checks."""
