# SPDX-License-Identifier: Apache-2.0
"""Training: state, step, loop, checkpoints, and what a person sees of them."""
