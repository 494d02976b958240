#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What needs torch and no GPU: the package's tests with torch, models of transformers, and the examples. `make check-torch` runs it.
# vLLM's and SGLang's wheels, of which a few files are kept in BUILD/engines, are 300 MB.
# TORCH_PYTHON: an interpreter that has all of it; else BUILD/torch is made, an environment of 3 GB (PyPI's torch brings CUDA along).
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p "${BUILD:=build}"
BUILD=$(cd "$BUILD" && pwd)
TREE=$PWD
ROOM=$BUILD/torch
said=$BUILD/torch.said
. tests/tap.sh

PACKAGES="torch==2.11.0 transformers==5.24.0 accelerate numpy pytest setuptools"
python=${TORCH_PYTHON:-$ROOM/bin/python}
environment() {
	"$python" -c 'import torch, transformers, pytest' 2>/dev/null && return
	[ -z "${TORCH_PYTHON:-}" ] || return
	# shellcheck disable=SC2086
	python3 -m venv --clear "$ROOM" && "$python" -m pip --quiet --disable-pip-version-check install $PACKAGES
}

# One thread a rank: on fewer cores than threads they would wait for each other.
export TERN_LIBRARY="$BUILD/libtern.so" PYTHONPATH="$TREE/python" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
export TERN_TREE="$TREE" TERN_INCLUDE="$TREE/include" TERN_DOCS="$TREE/docs" TERN_ENGINES="$BUILD/engines" TQDM_DISABLE=1

examples() {
	local ranks="$python -m torch.distributed.run --standalone --nproc-per-node 2" losses=$BUILD/torch.losses
	rm -rf "$losses" && mkdir -p "$losses"
	$ranks examples/serve/serve.py --check --tokens 12 &&
		"$python" examples/train/train.py --steps 8 --losses "$losses/one" &&
		$ranks examples/train/train.py --steps 8 --accumulate 2 --checkpoint-layers --losses "$losses/two" &&
		"$python" -c 'import json, sys
one, two = (json.load(open(path))["losses"] for path in sys.argv[1:])
assert max(abs(a - b) for a, b in zip(one, two)) < 1e-3 and two[-1] < two[0] - 0.2, (one, two)' "$losses/one" "$losses/two"
}

expect environment environment
[ "$failures" -eq 0 ] || exit 1
"$python" python/tests/engines.py "$TERN_ENGINES" || echo "# vLLM's and SGLang's files could not be fetched"
expect examples examples
(cd "$BUILD" && "$python" -m pytest -q --tap -rs -p no:cacheprovider "$TREE/python/tests/"test_{torch,torchrun,gradients,transformers,arrays,deep_ep,deep_ep_calls,plugins,engines,gated}.py) || failures=1
exit $failures
