# SPDX-License-Identifier: Apache-2.0
# Installs what the tests need and this machine lacks: on Debian and its kin, as root, in one call. Elsewhere the tests say what
# they miss. Sourced by check.sh.
missing_packages() {
	[ -e /usr/include/cmocka.h ] || echo libcmocka-dev
	command -v gcc >/dev/null || echo gcc libc6-dev
	command -v g++ >/dev/null || echo g++
	command -v pkg-config >/dev/null || echo pkg-config
	pkg-config --exists pmix 2>/dev/null || echo libpmix-dev
	pkg-config --exists libfabric 2>/dev/null || echo libfabric-dev
	pkg-config --exists libibverbs 2>/dev/null || echo libibverbs-dev
	[ -e /etc/libibverbs.d/rxe.driver ] || echo ibverbs-providers
	command -v qemu-system-x86_64 >/dev/null || echo qemu-system-x86
	command -v xz >/dev/null || echo xz-utils
	command -v rdma >/dev/null || echo iproute2
	command -v mpirun >/dev/null || echo openmpi-bin
	command -v mpicc >/dev/null || echo libopenmpi-dev
	command -v cmake >/dev/null || echo cmake
	command -v spin >/dev/null || echo spin
	command -v tcc >/dev/null || echo tcc
	command -v valgrind >/dev/null || echo valgrind
	command -v python3 >/dev/null || echo python3
	missing_python
	ls /usr/include/python3.*/Python.h >/dev/null 2>&1 || echo python3-dev
	command -v clang >/dev/null || echo clang libclang-rt-14-dev
	command -v clang-format >/dev/null || echo clang-format
}

# For the Python package: the system's Python, as that is what these packages are for.
missing_python() {
	local module package

	while read -r module package; do
		/usr/bin/python3 -c "import $module" 2>/dev/null || echo "$package"
	done <<-END
		ensurepip python3-venv
		numpy python3-numpy
		pytest python3-pytest
		hypothesis python3-hypothesis
		setuptools python3-setuptools
		wheel python3-wheel
		mypy mypy
		mpi4py python3-mpi4py
	END
}

install_packages() {
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 </dev/null
}

packages=$(missing_packages | sort -u | tr '\n' ' ')
if [ -n "$packages" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	echo "---- installing $packages"
	# shellcheck disable=SC2086
	install_packages $packages || { apt-get update -qq >/dev/null 2>&1 </dev/null && install_packages $packages; } ||
		echo "could not install all of them"
	packages=$(missing_packages | sort -u | tr '\n' ' ')
fi
[ -z "$packages" ] || echo "missing: $packages"
