# SPDX-License-Identifier: Apache-2.0
"""How a field is declared, named and timed; no jax is imported."""
