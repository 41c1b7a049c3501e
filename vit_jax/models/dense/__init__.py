# SPDX-License-Identifier: Apache-2.0
"""What reads the patches of an encoder where every pixel counts: classes, segments, depth."""
