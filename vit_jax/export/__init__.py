# SPDX-License-Identifier: Apache-2.0
"""How a model leaves: ONNX, StableHLO, transformers, timm, the Hub."""
