# SPDX-License-Identifier: Apache-2.0
"""How a run trains: its beginning, its steps, what is done between them, its end."""
