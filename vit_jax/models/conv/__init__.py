# SPDX-License-Identifier: Apache-2.0
"""Convolutional layers: of ResNets, stems and RegNets."""
