# SPDX-License-Identifier: Apache-2.0
"""What a run leaves: its folder, its lock, its copy in a bucket."""
