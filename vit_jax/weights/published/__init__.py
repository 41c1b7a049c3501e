# SPDX-License-Identifier: Apache-2.0
"""Which published weights there are, and what is known of each."""
