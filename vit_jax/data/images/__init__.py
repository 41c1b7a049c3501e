# SPDX-License-Identifier: Apache-2.0
"""From bytes to pixels: headers, decoding, and operations on single images."""
