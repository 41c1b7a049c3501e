# SPDX-License-Identifier: Apache-2.0
"""Where examples come from: folders, tables, archives, record files, and their splits."""
