#!/bin/bash
# A small Debian testing below one folder, with its Slurm and a pyslurm built for it: the one pair of the two that packages
# and PyPI offer together. Nothing of the host is changed. See docs/decisions/0007-pyslurm-in-a-worker.md.
# With another suite, and no pyslurm, it holds another release of Slurm: trixie has 24.11.
set -euo pipefail

usage() { cat <<'TEXT'
usage: pyslurm-chroot.sh ROOT [COMMAND]

  build          make it, or do nothing where it is made (the default; some minutes, 1 GB, needs root and debootstrap)
  up             start munged, slurmdbd, slurmctld and the slurmd in it, on loopback, and the host's MariaDB for slurmdbd
  down           stop them
  forget         stop them and remove the cluster's queue and history
  run WORDS...   run a command inside
  boot NODE HOW  how NODE boots from now on when it is woken: SECONDS (0: at once), or never
  wipe           stop all and remove ROOT

Its nodes sleep and wake as Slurm is told (scontrol update nodename=n1 state=power_down, power_up) and when a job needs
them: their slurmd is stopped and started, and what Slurm asked for is written down in log/power.log.

Settings are environment variables, with their defaults:
  CHROOT_NODES=2  CHROOT_GPUS=4   nodes n1, n2, ... and GPUs of each; none of them need exist
  CHROOT_PORT=28817               the controller's port; slurmdbd's is 2 above, the nodes' begin 184 above
  CHROOT_USERS="alice bob carol"  users made inside
  CHROOT_CONF=                    lines added to slurm.conf
  CHROOT_SUSPEND_TIMEOUT=3  CHROOT_RESUME_TIMEOUT=20   of the nodes, s
  CHROOT_SUITE=testing            Debian's suite that it is made of
  CHROOT_PYSLURM=25.11.2          release of pyslurm that is built; none: no pyslurm
TEXT
}

ROOT=${1:-}; COMMAND=${2:-build}
NODES=${CHROOT_NODES:-2} GPUS=${CHROOT_GPUS:-4} PORT=${CHROOT_PORT:-28817} USERS=${CHROOT_USERS:-alice bob carol}
SUITE=${CHROOT_SUITE:-testing} PYSLURM=${CHROOT_PYSLURM:-25.11.2}
STAMP=$ROOT/etc/helios-chroot LAB=/var/lib/helios-lab
PACKAGES="munge slurmctld slurmd slurmdbd slurm-client slurm-wlm-basic-plugins slurm-wlm-mysql-plugin libslurm-dev python3-dev python3-venv gcc libc6-dev ca-certificates procps"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8

fail() { echo "pyslurm-chroot: $*" >&2; exit 1; }
say() { echo "pyslurm-chroot: $* (at $SECONDS s)"; }

# Inside, with a /proc of its own: the mount lives in a namespace and goes away with the last process.
inside() {
  unshare --mount bash -c 'mount -t proc proc "$0/proc" 2>/dev/null || true; exec chroot "$0" "$@"' "$ROOT" "$@"
}

# The host's own mirror: the first Debian one that apt knows.
mirror() {
  apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' | grep -v security | head -1
}

build() {
  [ -e "$STAMP" ] && { say "made before: $(cat "$STAMP")"; return; }
  [ "$(id -u)" = 0 ] || fail "this must run as root"
  command -v debootstrap >/dev/null || fail "debootstrap is not installed; say: apt-get install debootstrap"
  local from; from=$(mirror)
  [ -n "$from" ] || fail "apt knows no Debian mirror"
  say "a base of Debian $SUITE"
  mkdir -p "$ROOT"; chmod 755 "$ROOT"
  [ ! -e "$ROOT/debootstrap" ] || rm -rf --one-file-system "${ROOT:?}"/*  # debootstrap was interrupted
  # What debootstrap mounts inside goes away with its namespace, also when it is killed.
  [ -e "$ROOT/usr/bin/apt-get" ] || unshare --mount debootstrap --variant=minbase "$SUITE" "$ROOT" "$from" >"$ROOT.log" 2>&1 ||
    fail "debootstrap failed: $(tail -3 "$ROOT.log")"
  say "Slurm and a compiler"
  install_packages >>"$ROOT.log" 2>&1 || fail "packages could not be installed: $(tail -3 "$ROOT.log")"
  say "pyslurm $PYSLURM"
  [ "$PYSLURM" = none ] || build_pyslurm >>"$ROOT.log" 2>&1 || fail "pyslurm could not be built: $(tail -5 "$ROOT.log")"
  make_users
  echo "Slurm $(inside slurmctld -V | cut -d' ' -f2), pyslurm $PYSLURM" >"$STAMP"
  say "made: $(cat "$STAMP")"
}

install_packages() {
  cp -L /etc/resolv.conf "$ROOT/etc/resolv.conf"
  printf '#!/bin/sh\nexit 101\n' >"$ROOT/usr/sbin/policy-rc.d"; chmod 755 "$ROOT/usr/sbin/policy-rc.d"  # start no daemon
  echo "deb $(mirror) stable main" >"$ROOT/etc/apt/sources.list.d/stable.list"
  # A mirror may be a snapshot of a past day: its lists count as expired.
  inside apt-get update -q -o Acquire::Check-Valid-Until=false &&
    DEBIAN_FRONTEND=noninteractive inside apt-get install -y -q --no-install-recommends \
      -o Dpkg::Options::=--force-unsafe-io $PACKAGES && older_libmariadb && inside apt-get clean
}

# slurmdbd does not start with testing's libmariadb3 11.8.9; with stable's 11.8.6 it does.
older_libmariadb() {
  inside sh -c 'cd /tmp && apt-get download -q libmariadb3/stable && dpkg-deb -x libmariadb3_*.deb /opt/libmariadb &&
    rm libmariadb3_*.deb'
}

# pyslurm wants headers that say its own release; the rest are newer names and codes that this library has no more.
build_pyslurm() {
  local headers=/opt/headers release=${PYSLURM%.*}
  # pip's settings and certificates are the host's.
  cp -L /etc/ssl/certs/ca-certificates.crt "$ROOT/etc/ssl/certs/ca-certificates.crt"
  [ ! -e /etc/pip.conf ] || cp -L /etc/pip.conf "$ROOT/etc/pip.conf"
  rm -rf "$ROOT$headers" && mkdir -p "$ROOT$headers" && cp -r "$ROOT/usr/include/slurm" "$ROOT$headers/" || return
  sed -i -E "s/(define SLURM_VERSION_NUMBER ).*/\1$(printf '0x%02x%02x00' "${release%.*}" "${release#*.}")/" \
    "$ROOT$headers/slurm/slurm_version.h"
  [ -e "$ROOT/opt/pyslurm/bin/pip" ] || inside python3 -m venv /opt/pyslurm || return
  SLURM_INCLUDE_DIR=$headers SLURM_LIB_DIR=$(library_folder) PYSLURM_BUILD_JOBS=2 \
    CFLAGS="-O0 -g0 -DSLURM_BACKWARD_COMPAT -Dslurm_free_ctl_conf=slurm_free_conf -DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=-1" \
    inside /opt/pyslurm/bin/pip install --no-binary pyslurm "pyslurm==$PYSLURM"
}
library_folder() { (cd "$ROOT" && dirname "/$(find usr/lib -name libslurm.so | head -1)"); }

make_users() {
  local user
  for user in $USERS; do inside id "$user" >/dev/null 2>&1 || inside useradd -M -d /tmp -s /bin/bash "$user"; done
}

write_configuration() {
  mkdir -p "$ROOT$LAB"/{state,spool,run,log,dev,bin,boot} "$ROOT"/etc/{slurm,munge}
  write_power_programs
  local g host; host=$(hostname -s)
  echo "127.0.0.1 localhost $host" >"$ROOT/etc/hosts"
  for ((g = 0; g < GPUS; g++)); do
    [ -e "$ROOT$LAB/dev/nvidia$g" ] || mknod -m 666 "$ROOT$LAB/dev/nvidia$g" c 1 3  # Slurm wants character devices
  done
  cat >"$ROOT/etc/slurm/slurm.conf" <<TEXT
ClusterName=chroot
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$PORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$LAB/run/munge.socket
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=$LAB/state
SlurmdSpoolDir=$LAB/spool/%n
SlurmctldPidFile=$LAB/run/slurmctld.pid
SlurmdPidFile=$LAB/run/slurmd.%n.pid
SlurmctldLogFile=$LAB/log/slurmctld.log
SlurmdLogFile=$LAB/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
SlurmdParameters=config_overrides
KillWait=2
MessageTimeout=3
MinJobAge=600
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,bf_window=1440,sched_min_interval=50000,batch_sched_delay=0,default_queue_depth=1000,time_min_as_soft_limit
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PriorityType=priority/multifactor
PriorityWeightPartition=100000
PriorityCalcPeriod=1
GresTypes=gpu
$(accounting)
SuspendProgram=$LAB/bin/suspend
ResumeProgram=$LAB/bin/resume
SuspendTime=604800
SuspendTimeout=${CHROOT_SUSPEND_TIMEOUT:-3}
ResumeTimeout=${CHROOT_RESUME_TIMEOUT:-20}
SuspendRate=0
ResumeRate=0
SlurmctldParameters=power_save_interval=1
${CHROOT_CONF:-}
NodeName=n[1-$NODES] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((PORT + 184))-$((PORT + 183 + NODES))] Sockets=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=512000 Gres=gpu:a100:$GPUS State=UNKNOWN
PartitionName=gpu Nodes=n[1-$NODES] Default=YES MaxTime=7-0 DefMemPerCPU=1000 State=UP OverSubscribe=NO PriorityJobFactor=1
TEXT
  cat >"$ROOT/etc/slurm/gres.conf" <<TEXT
AutoDetect=off
NodeName=n[1-$NODES] Name=gpu Type=a100 File=$LAB/dev/nvidia[0-$((GPUS - 1))]
TEXT
  echo CgroupPlugin=disabled >"$ROOT/etc/slurm/cgroup.conf"
  cat >"$ROOT/etc/slurm/slurmdbd.conf" <<TEXT
AuthType=auth/munge
AuthInfo=socket=$LAB/run/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$((PORT + 2))
CommunicationParameters=NoInAddrAny
SlurmUser=root
PidFile=$LAB/run/slurmdbd.pid
LogFile=$LAB/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
TEXT
  chmod 600 "$ROOT/etc/slurm/slurmdbd.conf"
}

# Slurm calls them inside; each node's slurmd is stopped and started in turn, never both at once. In a session of its own
# before anything goes to the background: Slurm kills what is left of a program's process group when the program ends.
write_power_programs() {
  cat >"$ROOT$LAB/bin/suspend" <<TEXT
#!/bin/sh
for node in \$(scontrol show hostnames "\$1"); do
  echo "\$(date +%s.%3N) off \$node" >>$LAB/log/power.log
  setsid sh -c '$LAB/bin/switch off "\$1" &' - "\$node" </dev/null >/dev/null 2>&1
done
TEXT
  sed 's/ off / on /' "$ROOT$LAB/bin/suspend" >"$ROOT$LAB/bin/resume"
  cat >"$ROOT$LAB/bin/switch" <<TEXT
#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin; export PATH
exec 9>$LAB/run/power.\$2.lock
flock 9
pid=\$(cat $LAB/run/slurmd.\$2.pid 2>/dev/null)
if [ "\$1" = off ]; then
  [ -z "\$pid" ] || kill "\$pid"
  while [ -n "\$pid" ] && grep -qa slurmd "/proc/\$pid/cmdline" 2>/dev/null; do sleep 0.1; done
else
  how=\$(cat $LAB/boot/\$2 2>/dev/null || echo 0)
  [ "\$how" != never ] || exit 0
  sleep "\$how"
  # The default signals, because slurmctld blocks some and slurmd would ignore SIGTERM; -b, or it goes on waking.
  env --default-signal setsid slurmd -b -N "\$2" 9>&- </dev/null >>"$LAB/log/slurmd.\$2.out" 2>&1
fi
TEXT
  chmod 755 "$ROOT$LAB"/bin/*
}

boot() { # NODE HOW
  case ${1:+${2:-}} in
  never | [0-9] | [0-9]*[0-9]) mkdir -p "$ROOT$LAB/boot"; echo "$2" >"$ROOT$LAB/boot/$1" ;;
  *) fail "which node, and how: SECONDS or never?" ;;
  esac
}

accounting() { # without slurmdbd Slurm knows no GPUs in its TRES
  cat <<TEXT
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((PORT + 2))
AccountingStoragePass=$LAB/run/munge.socket
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos
TEXT
}

# The process of a pid file lives and is the daemon that the file is named after, not a reused pid.
alive() { local d=${1##*/}; d=${d%%.*}; [ -s "$1" ] && grep -qa "$d" "/proc/$(cat "$1")/cmdline" 2>/dev/null; }

wait_for() { # SECONDS COMMAND...
  local limit=$((SECONDS + $1)); shift
  while ((SECONDS < limit)); do "$@" >/dev/null 2>&1 && return 0; sleep 0.1; done
  fail "timed out waiting for: $* (logs: $ROOT$LAB/log)"
}

up() {
  [ -e "$STAMP" ] || fail "it is not made; say: $0 $ROOT build"
  [ "$(id -u)" = 0 ] || fail "this must run as root: Slurm starts jobs as other users"
  command -v mariadbd >/dev/null || fail "MariaDB is not installed; say: apt-get install mariadb-server"
  write_configuration; start_munged; start_mariadbd; start_slurmdbd; start_slurmctld; start_slurmd
  say "$(cat "$STAMP") runs: $NODES nodes of $GPUS GPUs"
}

start_munged() {
  alive "$ROOT$LAB/run/munged.pid" && return
  [ -s "$ROOT/etc/munge/munge.key" ] || dd if=/dev/urandom of="$ROOT/etc/munge/munge.key" bs=1024 count=1 status=none
  chmod 400 "$ROOT/etc/munge/munge.key"
  chown 0:0 "$ROOT/etc/munge/munge.key" "$ROOT/etc/munge"
  inside setsid munged --force --key-file=/etc/munge/munge.key --socket="$LAB/run/munge.socket" \
    --pid-file="$LAB/run/munged.pid" --log-file="$LAB/log/munged.log" --seed-file="$LAB/state/munge.seed"
  wait_for 5 inside munge -n --socket="$LAB/run/munge.socket"
}

start_mariadbd() { # the host's, its socket where slurmdbd sees it; as root, because ROOT may lie where user mysql cannot go
  local data=$ROOT$LAB/mysql
  alive "$ROOT$LAB/run/mariadbd.pid" && return
  mkdir -p "$data"
  [ -d "$data/mysql" ] || mariadb-install-db --no-defaults --user=root --datadir="$data" \
    --auth-root-authentication-method=socket --skip-test-db >"$ROOT$LAB/log/mariadb-install.log" 2>&1
  setsid mariadbd --no-defaults --user=root --datadir="$data" --socket="$data/mysql.sock" --pid-file="$data/mariadbd.pid" \
    --skip-networking --innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=2 --log-error="$data/error.log" \
    </dev/null >/dev/null 2>&1 &
  echo $! >"$ROOT$LAB/run/mariadbd.pid"
  wait_for 30 mariadb-admin --no-defaults --socket="$data/mysql.sock" ping
}

start_slurmdbd() {
  alive "$ROOT$LAB/run/slurmdbd.pid" && return
  rm -f "$ROOT$LAB/run/slurmdbd.pid"
  MYSQL_UNIX_PORT=$LAB/mysql/mysql.sock LD_LIBRARY_PATH=/opt/libmariadb$(library_folder) \
    inside setsid slurmdbd </dev/null >>"$ROOT$LAB/log/slurmdbd.out" 2>&1
  wait_for 60 inside sacctmgr -n -i list cluster
  inside sacctmgr -i -Q add cluster chroot >/dev/null 2>&1 || true
  inside sacctmgr -i -Q add account vision Cluster=chroot Description=dev Organization=dev >/dev/null 2>&1 || true
  inside sacctmgr -i -Q add user "${USERS// /,}" Account=vision Cluster=chroot DefaultAccount=vision >/dev/null 2>&1 || true
}

start_slurmctld() {
  alive "$ROOT$LAB/run/slurmctld.pid" && return
  rm -f "$ROOT$LAB/run/slurmctld.pid"
  inside setsid slurmctld </dev/null >>"$ROOT$LAB/log/slurmctld.out" 2>&1
  wait_for 30 inside scontrol ping
}

start_slurmd() {
  local n
  for ((n = 1; n <= NODES; n++)); do
    alive "$ROOT$LAB/run/slurmd.n$n.pid" && continue
    rm -f "$ROOT$LAB/run/slurmd.n$n.pid"; mkdir -p "$ROOT$LAB/spool/n$n"
    # -b reports a boot just now: without it a node that was down stays so.
    inside env --default-signal setsid slurmd -b -N "n$n" </dev/null >>"$ROOT$LAB/log/slurmd.n$n.out" 2>&1
  done
  wait_for 60 all_idle
}
all_idle() { local s; s=$(inside sinfo -h -N -o '%t'); [ -n "$s" ] && ! grep -qvE '^(idle|mix|alloc)[~%!]?$' <<<"$s"; }

down() {
  local f
  for f in "$ROOT$LAB"/run/slurmd.*.pid "$ROOT$LAB"/run/{slurmctld,slurmdbd,mariadbd,munged}.pid; do [ ! -e "$f" ] || stop_daemon "$f"; done
  end_jobs
}

end_jobs() { # a stopped slurmd leaves its jobs running: end what has ROOT as its root folder
  local process root; root=$(readlink -f "$ROOT")
  [ -n "$root" ] && [ "$root" != / ] || return 0
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/root" 2>/dev/null)" != "$root" ] || kill -9 "${process#/proc/}" 2>/dev/null || true
  done
}

stop_daemon() { # PIDFILE: TERM, ten seconds, KILL
  local pid
  if alive "$1"; then
    pid=$(cat "$1" 2>/dev/null) && kill "$pid" 2>/dev/null || true
    # A process that has ended but is not yet waited for still takes signals: it has no command line any more.
    for ((i = 0; i < 100; i++)); do grep -qa . "/proc/$pid/cmdline" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
  fi
  rm -f "$1"
}

forget() { down; rm -rf "$ROOT$LAB"; }

wipe() { down; rm -rf --one-file-system "$ROOT"; rm -f "$ROOT.log"; }

case $COMMAND in
build | up | down | forget | run | boot | wipe) [ -n "$ROOT" ] || { usage >&2; exit 2; } ;;
*) usage >&2; exit 2 ;;
esac
case $COMMAND in
run) shift 2; inside "$@" ;;
boot) boot "${3:-}" "${4:-}" ;;
*) "$COMMAND" ;;
esac
