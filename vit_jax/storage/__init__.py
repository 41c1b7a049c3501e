# SPDX-License-Identifier: Apache-2.0
"""Where bytes lie: files, buckets, and names that strangers gave."""
