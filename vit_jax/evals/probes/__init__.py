# SPDX-License-Identifier: Apache-2.0
"""What frozen features are worth: simple classifiers fitted to them."""
