#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What tern doctor says of GPUs' memory, as drivers of a test have it (tests/device/driver/). BUILD is build if not set.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build}
case $build in /*) ;; *) build=$PWD/$build ;; esac
said=$(mktemp) || exit 1
trap 'rm -f "$said" "$said.all"' EXIT
. tests/tap.sh

# doctor DRIVER SETTINGS...
doctor() {
	driver=$1
	shift
	env LD_LIBRARY_PATH="$build/tests/driver/$driver" "$@" "$build/tern" doctor --quick
}

# says TEXT DRIVER SETTINGS...: in a line of each of two GPUs.
says() {
	text=$1
	shift
	doctor "$@" >"$said.all" || return
	cat "$said.all"
	[ "$(grep -cF "$text" "$said.all")" -eq 2 ]
}

expect "which GPUs" says "a GPU of a test" new
expect "who reaches whom" sh -c "LD_LIBRARY_PATH='$build/tests/driver/new' '$build/tern' doctor --quick | grep -q '^GPU 0 .*number 0, PCI ffff:a0:00.0; reaches GPUs: 1$'"
expect "ordered for the owner" says "dma-buf: yes; what a network writes is ordered for this GPU; so rows between nodes lie there, where the network takes it" new DRIVER_ORDERING=100
expect "ordered for all" says "ordered for all GPUs; so rows between nodes lie there, where the network takes it" new DRIVER_ORDERING=200
expect "flushed" says "not ordered, and flushed; so rows between nodes lie there, where the network takes it" new DRIVER_ORDERING=0 DRIVER_FLUSH=1
expect "flushed by the device alone" says "not ordered, and cannot be flushed; so rows between nodes lie in pinned memory" new DRIVER_ORDERING=0 DRIVER_FLUSH=2
expect "not flushed" says "not ordered, and cannot be flushed; so rows between nodes lie in pinned memory" new DRIVER_ORDERING=0
expect "an order that nobody knows" says "in an order that the driver does not tell; so rows between nodes lie in pinned memory" new DRIVER_ORDERING=7 DRIVER_FLUSH=1
expect "an attribute that nobody knows" says "in an order that the driver does not tell; so rows between nodes lie in pinned memory" new
expect "no dma-buf" says "dma-buf: no; what a network writes is ordered for this GPU; so rows between nodes lie in pinned memory with verbs" old DRIVER_ORDERING=100
echo "1..$number"
exit $failures
