# SPDX-License-Identifier: Apache-2.0
"""What a model costs: FLOPs, memory, parameters, and the peak its hardware is measured by."""
