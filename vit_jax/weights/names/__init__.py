# SPDX-License-Identifier: Apache-2.0
"""Under which names others keep the same tensors: Google, timm, transformers."""
