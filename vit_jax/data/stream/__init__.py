# SPDX-License-Identifier: Apache-2.0
"""From a source to batches: transforms, loading, prefetching."""
