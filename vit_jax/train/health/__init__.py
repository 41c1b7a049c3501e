# SPDX-License-Identifier: Apache-2.0
"""What watches over a run: bad data, bad losses, hangs, signals, lost and slow processes."""
