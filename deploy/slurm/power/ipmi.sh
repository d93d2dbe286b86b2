#!/bin/sh
# Back end: a management controller that speaks IPMI, by ipmipower (freeipmi) or ipmitool, whichever is there.
# Settings: host=  user=  secret=FILE (the password, alone on its line)  driver=LAN_2_0 (ipmipower) or lanplus (ipmitool)
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname -- "$0")/backend.sh"

ready() {
  need HOST
  check_secret
  tool=$(first_of ipmipower ipmitool) || exit
}

# Neither takes the password from anywhere but a file, a prompt, the environment or its arguments, where ps shows it.
ipmi() { # stat|on|soft|off
  if [ "$tool" = ipmipower ]; then by_ipmipower "$1"; else by_ipmitool "$1"; fi >"$work/said" 2>&1
}
by_ipmipower() {
  { [ -z "${POWER_USER:-}" ] || printf 'username "%s"\n' "$POWER_USER"
    printf 'password "%s"\n' "$(secret | sed 's/[\\"#]/\\&/g')"; } >"$work/freeipmi.conf"
  ipmipower --config-file="$work/freeipmi.conf" -D "${POWER_DRIVER:-LAN_2_0}" -h "$POWER_HOST" "--$1"
}
by_ipmitool() {
  ipmitool -I "${POWER_DRIVER:-lanplus}" -H "$POWER_HOST" ${POWER_USER:+-U "$POWER_USER"} -f "$POWER_SECRET" \
    chassis power "$(printf %s "$1" | sed 's/^stat$/status/')"
}

state() { # "host: on" says the one, "Chassis Power is on" the other
  if ipmi stat; then
    case $(tail -n 1 "$work/said") in
    *[:s]" on") echo on; return ;;
    *[:s]" off") echo off; return ;;
    esac
  fi
  echo "$tool: $(without_secret "$work/said")" >&2
  return 1
}

order() { # ipmipower says "host: ok"; what else it says is a failure, whatever its exit status
  if ipmi "$1" && { [ "$tool" != ipmipower ] || grep -q ': ok$' "$work/said"; }; then return; fi
  echo "$tool: $(without_secret "$work/said")" >&2
  return 1
}
switch_on() { order on; }
switch_off() { order soft; }
force_off() { order off; }

run "$@"
