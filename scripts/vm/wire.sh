#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In the guest: pulls the wire between rxe1 and rxe2 (veth1 goes down, so veth0 loses its carrier and both ports are down), or puts it back.
#
#   scripts/vm/wire.sh down | up
case "$1" in
down) exec ip link set veth1 down ;;
up) ip link set veth1 up || exit 1 ;;
*) exit 2 ;;
esac
# Taking it down flushed what was known on its side. Nobody should have to ask the wire for addresses first: that takes a second where an answer is lost.
for i in 0 1; do
	ip route replace 10.77.0.$((2 - i))/32 dev veth$i table 10$i &&
		ip neigh replace 10.77.0.$((2 - i)) lladdr "$(cat /sys/class/net/veth$((1 - i))/address)" dev veth$i nud permanent || exit 1
done
# The kernel tells the devices of their carrier a while later.
for _ in $(seq 100); do
	grep -q ACTIVE /sys/class/infiniband/rxe1/ports/1/state && grep -q ACTIVE /sys/class/infiniband/rxe2/ports/1/state && exit 0
	sleep 0.1
done
echo "the ports of rxe1 and rxe2 did not come up"
exit 1
