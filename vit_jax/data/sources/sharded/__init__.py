# SPDX-License-Identifier: Apache-2.0
"""Sources whose examples lie many to a file: tar archives, Parquet files, datasets of the Hub."""
