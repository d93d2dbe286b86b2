#!/bin/sh
# Back end: a machine without management controller. On by Wake-on-LAN, off by ssh; it is on while it answers ping.
# Settings: mac= or macs=FILE (lines MAC NODE, as /etc/ethers)  secret=FILE (the ssh key)
#           host=%n  user=root  broadcast=192.0.2.255 (wakeonlan)  interface=eth0 (etherwake)
# The key should be good for one thing: command="systemctl poweroff",restrict in the node's authorized_keys.
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname -- "$0")/backend.sh"

node=${2:-}
host=${POWER_HOST:-$node}

ready() {
  check_secret
  mac=${POWER_MAC:-$([ -z "${POWER_MACS:-}" ] || awk -v node="$node" '$2 == node { print $1; exit }' "$POWER_MACS")}
  [ -n "$mac" ] || refuse "no MAC of $node: mac= or macs=FILE"
  tool=$(first_of wakeonlan etherwake ether-wake) || exit
  first_of ssh >/dev/null && first_of ping >/dev/null || exit
}

state() { if ping -c 1 -W 1 "$host" >/dev/null 2>&1; then echo on; else echo off; fi; }

switch_on() {
  case $tool in
  wakeonlan) wakeonlan ${POWER_BROADCAST:+-i "$POWER_BROADCAST"} "$mac" ;;
  *) "$tool" ${POWER_INTERFACE:+-i "$POWER_INTERFACE"} "$mac" ;;
  esac >"$work/said" 2>&1 || { echo "$tool: $(tail -n 1 "$work/said")" >&2; return 1; }
}

switch_off() { # the machine may be gone before ssh has heard its answer
  ssh -i "$POWER_SECRET" -o BatchMode=yes -o IdentitiesOnly=yes -o ConnectTimeout=10 "${POWER_USER:-root}@$host" \
    systemctl poweroff >"$work/said" 2>&1 && return
  grep -qi 'closed by' "$work/said" && return
  echo "ssh: $(tail -n 1 "$work/said")" >&2
  return 1
}
force_off() { :; } # nothing can

run "$@"
