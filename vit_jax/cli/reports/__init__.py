# SPDX-License-Identifier: Apache-2.0
"""What `--dry_run`, `--compile_for` and `doctor` say without a training step."""
