# SPDX-License-Identifier: Apache-2.0
"""What a step costs, by shapes or by a compiler: FLOPs, memory, traffic, time."""
