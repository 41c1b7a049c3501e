# SPDX-License-Identifier: Apache-2.0
"""What a model sees and has learned, as pictures: attention, saliency, weights, augmentations."""
