# SPDX-License-Identifier: Apache-2.0
"""The four verbs of `vit_jax sweep`: plan, run, status, report."""
