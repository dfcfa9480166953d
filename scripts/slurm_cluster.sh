#!/bin/bash
# A real Slurm on this machine: munge, slurmctld and four slurmd, each with a
# network namespace and a host name of its own (controller, node1, node2, node3,
# node7), joined by a bridge. Needs root and Debian's slurmctld, slurmd,
# slurm-client, munge and iproute2; leaves nothing behind.
#
#   scripts/slurm_cluster.sh --test             # the tests of slurm_tests.sh
#   scripts/slurm_cluster.sh [--hosts debian] COMMAND...   # COMMAND on the controller
#
# --hosts debian: every node's /etc/hosts gives its own name 127.0.1.1, as
# Debian's installer does.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
  echo "skipped: $*"
  exit 77
}
[ "$(id -u)" -eq 0 ] || skip "scripts/slurm_cluster.sh needs root"
for tool in slurmctld slurmd srun munged ip unshare; do
  command -v "$tool" >/dev/null ||
    skip "$tool is not installed (slurmctld slurmd slurm-client munge iproute2)"
done

is_debian_hosts=0
if [ "${1:-}" = --hosts ]; then
  [ "$2" = debian ] || { echo "--hosts debian, not '$2'" >&2; exit 2; }
  is_debian_hosts=1
  shift 2
fi
[ $# -gt 0 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2; }

nodes=(node1 node2 node3 node7)
tag=bs$$
dir=$(mktemp -d /tmp/brigade-slurm-XXXXXX)
chmod 755 "$dir"
daemons=()

clean_up() {
  for pid in "${daemons[@]}"; do
    kill -TERM "$pid" 2>/dev/null || true
  done
  for pid in "${daemons[@]}"; do
    wait "$pid" 2>/dev/null || true
  done
  for host in controller "${nodes[@]}"; do
    # Steps of jobs outlive slurmd.
    ip netns pids "$tag-$host" 2>/dev/null | xargs -r kill -KILL || true
    ip netns delete "$tag-$host" 2>/dev/null || true
  done
  rm -rf "$dir"
}
trap clean_up EXIT

# on HOST COMMAND...: with the host's network, name, /etc/hosts and Slurm.
on() {
  local host=$1
  shift
  # Not ip netns exec, which mounts a /sys without cgroups.
  nsenter --net="/run/netns/$tag-$host" unshare --uts --mount bash -c '
    hostname "$1"
    mount --bind "$2/hosts-$1" /etc/hosts
    export SLURM_CONF=$2/slurm.conf
    shift 2
    exec "$@"' _ "$host" "$dir" "$@"
}

make_network() {
  ip netns add "$tag-controller"
  local net=(ip -n "$tag-controller")
  "${net[@]}" link set lo up
  "${net[@]}" link add bridge type bridge
  "${net[@]}" addr add 10.77.0.100/24 dev bridge
  "${net[@]}" link set bridge up
  local number=0 host
  for host in "${nodes[@]}"; do
    number=$((number + 1))
    ip netns add "$tag-$host"
    "${net[@]}" link add "to-$host" type veth peer name eth0 netns "$tag-$host"
    "${net[@]}" link set "to-$host" master bridge up
    ip -n "$tag-$host" link set lo up
    ip -n "$tag-$host" addr add "10.77.0.$number/24" dev eth0
    ip -n "$tag-$host" link set eth0 up
  done
  for host in controller "${nodes[@]}"; do
    {
      echo "127.0.0.1 localhost"
      if [ "$is_debian_hosts" = 1 ]; then
        echo "127.0.1.1 $host"
      fi
      echo "10.77.0.100 controller"
      number=0
      for other in "${nodes[@]}"; do
        number=$((number + 1))
        [ "$is_debian_hosts$other" = "1$host" ] || echo "10.77.0.$number $other"
      done
    } >"$dir/hosts-$host"
  done
}

write_config() {
  mkdir "$dir/state"
  cat >"$dir/slurm.conf" <<CONF
ClusterName=brigade
SlurmctldHost=controller(10.77.0.100)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
SlurmctldTimeout=30
SlurmdTimeout=20
KillWait=20
ReturnToService=2
JobRequeue=1
MinJobAge=300
# Else a requeued job waits for two minutes.
SchedulerParameters=sched_interval=2,bf_interval=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
$(for i in "${!nodes[@]}"; do
    echo "NodeName=${nodes[i]} NodeAddr=10.77.0.$((i + 1)) CPUs=4 RealMemory=2000 State=UNKNOWN"
  done)
PartitionName=all Nodes=node[1-3,7] Default=YES MaxTime=60 State=UP OverSubscribe=NO
CONF
}

# until_true SECONDS COMMAND...
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    if [ $SECONDS -ge $end ]; then
      echo "not so in time: $*" >&2
      return 1
    fi
    sleep 0.2
  done
}

all_idle() {
  [ "$(on controller sinfo -h -o '%T %D')" = "idle 4" ]
}

start_daemons() {
  dd if=/dev/urandom of="$dir/munge.key" bs=128 count=1 status=none
  chmod 600 "$dir/munge.key"
  munged --foreground --key-file="$dir/munge.key" \
    --socket="$dir/munge.socket" --pid-file="$dir/munge.pid" \
    --log-file="$dir/munge.log" --seed-file="$dir/munge.seed" --force \
    >/dev/null 2>&1 &
  daemons+=($!)
  until_true 10 test -S "$dir/munge.socket"
  on controller slurmctld -D >"$dir/slurmctld.out" 2>&1 &
  daemons+=($!)
  local host
  for host in "${nodes[@]}"; do
    mkdir "$dir/spool-$host"
    on "$host" slurmd -D >"$dir/slurmd-$host.out" 2>&1 &
    daemons+=($!)
  done
  if ! until_true 20 all_idle; then
    tail -n 20 "$dir"/*.log "$dir"/*.out >&2
    return 1
  fi
}

make_network
write_config
start_daemons

if [ "$1" != --test ]; then
  on controller "$@"
  exit
fi
. scripts/slurm_tests.sh
