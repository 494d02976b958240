#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A small virtual machine with an RDMA device: Debian's kernel, emulated, with Soft-RoCE (rdma_rxe). No rights over the host are needed, and none of its hardware.
#
#   scripts/vm.sh prepare                        fetch and unpack what it takes; exit code 77 and a reason where that cannot be had
#   scripts/vm.sh run [-t SECONDS] COMMAND...    run a command in it; its output and exit code come out; 77 and a reason where it does not come up.
#                                                SECONDS (120): of an idle host, without a word of it
#
# Inside, / is the host's, read only; /tmp, /run and /dev/shm are the guest's own, but for this tree, where it lies below
# one of them. Its RDMA devices are rxe0 on the loopback, and rxe1 and rxe2 on the ends of a veth pair.
# BUILD is the folder of the build; downloads go into BUILD/vm.
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build}
CACHE=$(realpath -m "${TERN_VM_CACHE:-$BUILD/vm}")
export WITHIN=${WITHIN:-$BUILD/tests/within}
MODULES="virtio_pci 9pnet_virtio 9p crc32_generic crc32c_generic rdma_rxe rdma_ucm veth sch_netem sch_prio cls_u32 dummy"

give_up() {
	echo "$*"
	exit 77
}

# The kernel that linux-image-amd64 stands for, not one of the cloud's: those have no rxe.
fetch() {
	local image

	[ -e "$CACHE/fetched" ] && return
	command -v apt-get >/dev/null || give_up "no apt-get to fetch a kernel with"
	mkdir -p "$CACHE/packages"
	image=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '$1 == "Depends:" {print $2; exit}')
	[ -n "$image" ] || give_up "the package lists know no linux-image-amd64"
	(cd "$CACHE/packages" && apt-get download -qq "$image" busybox-static perftest libibumad3 librdmacm1 libpci3 >/dev/null 2>&1) ||
		give_up "could not fetch $image and busybox-static"
	for package in "$CACHE"/packages/*.deb; do
		dpkg -x "$package" "$CACHE/unpacked" || give_up "could not unpack $package"
	done
	rm -r "$CACHE/packages"
	touch "$CACHE/fetched"
}

# Inside vmlinuz is the kernel, compressed by xz: booting it as it is saves its unpacking under emulation.
unpack_kernel() {
	local packed=$1 offset

	for offset in $(LC_ALL=C grep -abo $'\xfd7zXZ' "$packed" | cut -d: -f1); do
		tail -c +$((offset + 1)) "$packed" | xz -dc --single-stream >"$CACHE/vmlinux" 2>/dev/null
		[ "$(head -c 4 "$CACHE/vmlinux" | tail -c 3)" = ELF ] && return
	done
	give_up "no kernel was found in $packed"
}

# The modules named in MODULES and all that they need, one path a line.
needed_modules() {
	local modules=$1

	awk -v wanted="$MODULES" '
		function name(path) { sub(/.*\//, "", path); sub(/\.ko.*/, "", path); gsub(/-/, "_", path); return path }
		function take(path, i, n, list) {
			if (taken[path]++) return
			n = split(needs[path], list, " ")
			for (i = 1; i <= n; i++) take(list[i])
			print path
		}
		{ path = $1; sub(/:$/, "", path); at[name(path)] = path; $1 = ""; needs[path] = $0 }
		END { n = split(wanted, list, " "); for (i = 1; i <= n; i++) if (list[i] in at) take(at[list[i]]) }' "$modules/modules.dep"
}

make_initramfs() {
	local busybox=$CACHE/unpacked/bin/busybox version tree=$CACHE/initramfs path

	version=$(ls "$CACHE/unpacked/lib/modules")
	"$busybox" depmod -b "$CACHE/unpacked" "$version" || give_up "depmod failed"
	rm -rf "$tree"
	mkdir -p "$tree"/{bin,sbin,dev,proc,sys,new,lib/modules/"$version"}
	cp "$busybox" "$tree/bin/"
	ln -s /bin/busybox "$tree/bin/sh"
	ln -s /bin/busybox "$tree/sbin/modprobe" # the kernel calls it
	needed_modules "$CACHE/unpacked/lib/modules/$version" | while read -r path; do
		mkdir -p "$tree/lib/modules/$version/${path%/*}"
		cp "$CACHE/unpacked/lib/modules/$version/$path" "$tree/lib/modules/$version/$path"
	done
	touch "$tree/lib/modules/$version"/modules.{order,builtin}
	"$busybox" depmod -b "$tree" "$version" || give_up "depmod failed"
	install -m 755 scripts/vm/init "$tree/init"
	(cd "$tree" && find . | "$busybox" cpio -o -H newc 2>/dev/null) >"$CACHE/initramfs.cpio"
}

prepare() {
	local tool

	for tool in qemu-system-x86_64 xz dpkg; do
		command -v $tool >/dev/null || give_up "$tool is not installed"
	done
	fetch
	if [ ! -e "$CACHE/prepared" ] || [ scripts/vm.sh -nt "$CACHE/prepared" ] || [ scripts/vm/init -nt "$CACHE/prepared" ]; then
		unpack_kernel "$CACHE"/unpacked/boot/vmlinuz-*
		make_initramfs
		touch "$CACHE/prepared"
	fi
}

# What the guest runs, with this shell's words and the settings that tests look at.
write_job() {
	local shared=$1

	shift
	printf '%s\n' "$PWD" "$(realpath -m "$BUILD")" "$CACHE" >"$shared/places"
	{
		printf 'cd %q\n' "$PWD"
		export -p | grep -E '^declare -x (TERN_|BUILD|[A-Z]+SAN_OPTIONS|CMOCKA_)'
		printf 'export LD_LIBRARY_PATH=%q PATH=$PATH:%q\n' "$CACHE/unpacked/usr/lib/x86_64-linux-gnu" "$CACHE/unpacked/usr/bin"
		printf '%q ' "$@"
		echo
	} >"$shared/job"
}

# start SECONDS SHARED: the machine, until it is switched off. Exit code 123: it has not come up.
start() {
	local tsc

	tsc=$("$BUILD/tests/vm/tsc") && tsc=tsc_early_khz=$tsc || tsc=
	# Of a processor with AVX, which libfabric's libpsm2 takes for granted where the clock seems wrong to it, but
	# without AVX2, as emulating that takes a quarter more time. How fast the clock's counter is the kernel is told: what
	# it measures on a busy host is wrong by as much as four. Nor does its check of its timer say anything there, which
	# counts ticks against turns of a loop. preempt=full: where a wire is pulled, rxe of this kernel tries to send again
	# and again in the call that posts, until another thread of the kernel has heard of the wire. Both processors can be
	# in such a call, and neither would ever leave it for that thread.
	"$WITHIN" "$1" -p "$2/output" -b 120 "$2/up" qemu-system-x86_64 -accel tcg,thread=multi -cpu SandyBridge,-x2apic,-tsc-deadline -smp 2 -m "${TERN_VM_MEMORY:-3G}" -M q35 -nodefaults \
		-no-user-config -no-reboot -display none -serial "file:$2/console" -kernel "$CACHE/vmlinux" -initrd "$CACHE/initramfs.cpio" \
		-append "console=ttyS0 preempt=full panic=-1 mitigations=off no_timer_check $tsc tsc=reliable clocksource=tsc" -device isa-debug-exit,iobase=0xf4,iosize=0x04 \
		-fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=host,mount_tag=host \
		-fsdev local,id=shared,path="$2",security_model=none -device virtio-9p-pci,fsdev=shared,mount_tag=shared </dev/null
}

# complaint CONSOLE: what the kernel said of itself first, less registers, as a report of make check has 40 lines; or else
# its last words.
complaint() {
	local from

	from=$(grep -nE -m 1 'BUG: |INFO: |WARNING: |Oops' "$1" | cut -d: -f1)
	if [ -n "$from" ]; then
		tail -n "+$from" "$1" | grep -vE '\] (R(SP|[A-D]X|[SD]I|BP|[01][0-9]):|CS:|FS:|CR2:|Code:|Modules linked|DR[0-9])' | head -n 38
	else
		tail -n 20 "$1"
	fi
}

run() {
	local seconds=120 shared rc qemu try

	[ "${1:-}" = -t ] && seconds=$2 && shift 2
	(prepare) || exit $?
	make -s BUILD="$BUILD" "$WITHIN" "$BUILD/tests/vm/tsc" || exit 1
	shared=$(mktemp -d)
	write_job "$shared" "$@"
	# A kernel under emulation now and then stops before its first process runs. Nothing has been tested then.
	for try in 1 2 3; do
		: >"$shared/output"
		start "$seconds" "$shared" &
		qemu=$!
		tail -q -s 0.1 --pid=$qemu -n +1 -f "$shared/output" 2>/dev/null
		wait $qemu
		rc=$?
		[ -e "$shared/up" ] && break
		echo "the virtual machine has not come up (exit code $rc, attempt $try of 3); its last words:" >&2
		tail -n 20 "$shared/console" >&2
	done
	if [ -e "$shared/rc" ]; then
		rc=$(cat "$shared/rc")
	elif [ $rc -eq 123 ]; then
		echo "the emulated machine has not come up in $try attempts, so nothing was tested"
		rc=77
	elif [ $rc -eq 124 ]; then
		echo "the virtual machine took $seconds s of an idle host without a word; its kernel says:"
		complaint "$shared/console"
	else
		echo "the virtual machine ended (qemu's exit code is $rc) without a verdict; its kernel says:"
		complaint "$shared/console"
		rc=125
	fi
	[ -n "${TERN_VM_CONSOLE:-}" ] && cp "$shared/console" "$TERN_VM_CONSOLE"
	rm -r "$shared"
	exit "$rc"
}

case "${1:-}" in
prepare) prepare ;;
run) shift && run "$@" ;;
*) sed -n '3,10s/^# \{0,1\}//p' "$0" ;;
esac
