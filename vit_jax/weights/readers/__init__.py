# SPDX-License-Identifier: Apache-2.0
"""How files of weights are read: npz, safetensors, torch, TensorFlow, repositories."""
