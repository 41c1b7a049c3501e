# SPDX-License-Identifier: Apache-2.0
"""How numbers become pictures: plots, learning curves, sheets of images, overlays."""
