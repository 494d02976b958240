#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes src/bindings.rs of the headers; bindgen is in Debian. generate.sh [FILE]
set -eu
cd "$(dirname "$0")"
out=${1:-src/bindings.rs}
{
	echo '// SPDX-License-Identifier: Apache-2.0'
	echo '// Made by generate.sh of include/tern.h and include/tern_engine.h.'
	echo '#include "../../include/tern_engine.h"' >bindings.tmp.h
	bindgen bindings.tmp.h --allowlist-file '.*/tern(_engine)?\.h' --default-enum-style consts --no-prepend-enum-name --with-derive-default \
		--size_t-is-usize --blocklist-type '(_?_?u?int(8|16|32|64)_t|size_t)' --disable-header-comment --use-core --ctypes-prefix ::std::os::raw \
		--blocklist-function 'tern_(group|moe|engine)_config_init' --no-doc-comments --no-layout-tests |
		sed -E 's/\bu?int(8|16|32|64)_t\b/X&/g; s/Xuint([0-9]+)_t/u\1/g; s/Xint([0-9]+)_t/i\1/g; s/\bsize_t\b/usize/g'
	rm -f bindings.tmp.h
} >"$out"
