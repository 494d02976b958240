# SPDX-License-Identifier: Apache-2.0
"""deep_ep is tern_ep.deep_ep."""

from tern_ep.deep_ep import install

__tern__ = True
install()
