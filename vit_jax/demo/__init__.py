# SPDX-License-Identifier: Apache-2.0
"""A page in the browser: a visitor's image, its likeliest classes and where the model looked."""
