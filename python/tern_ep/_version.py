# SPDX-License-Identifier: Apache-2.0
"""The version of the C ABI that this package speaks: include/tern.h's."""

__version__ = "0.1.0"
