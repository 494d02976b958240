# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts that start many processes, in the tree's folder, before anything else: libfabric reads all names of
# the kernel, twice, in every process that begins to use it. Who may sees none from here on.
if [ -z "${TERN_NO_KALLSYMS:-}" ] && unshare -m true 2>/dev/null; then
	export TERN_NO_KALLSYMS=1
	exec unshare -m sh -c 'mount --bind /dev/null /proc/kallsyms 2>/dev/null; exec "$0" "$@"' "$PWD/scripts/${0##*/}" "$@"
fi
