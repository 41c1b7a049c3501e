# SPDX-License-Identifier: Apache-2.0
"""What is computed where: meshes, hardware, processes that agree."""
