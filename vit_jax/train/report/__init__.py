# SPDX-License-Identifier: Apache-2.0
"""What a run reports: metrics, wall time, progress, profiles."""
