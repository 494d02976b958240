# SPDX-License-Identifier: Apache-2.0
# Sourced in the guest, as root, with the tree's path in $here: interfaces, and the RDMA devices on them. rxe0 is on the loopback, rxe1 and rxe2 on the ends of a veth pair.
ip link set lo up
rdma link add rxe0 type rxe netdev lo
# Both ends of the pair are here. So that a packet from one to the other goes over the wire, the local table is looked at after the rules that send it there.
ip link add veth0 type veth peer name veth1
for i in 0 1; do
	ip addr add 10.77.0.$((i + 1))/32 dev veth$i
	ip link set veth$i up mtu 4200
	echo 1 >/proc/sys/net/ipv4/conf/veth$i/accept_local
	echo 0 >/proc/sys/net/ipv4/conf/veth$i/rp_filter
	ip rule add from 10.77.0.$((i + 1)) to 10.77.0.$((2 - i)) iif lo lookup 10$i priority 10
done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
ip rule del priority 0
ip rule add lookup local priority 100
rdma link add rxe1 type rxe netdev veth0 && rdma link add rxe2 type rxe netdev veth1 && "$here/scripts/vm/wire.sh" up
