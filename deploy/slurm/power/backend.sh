# What the back ends share; each reads this file, defines what follows, and ends with: run "$@"
#
#   ready       fail where a setting, a secret or a tool is missing; asks no machine
#   state       print on, off, or changing; fail where that cannot be told
#   switch_on, switch_off, force_off   ask for it; the machine takes its time
#
# Its settings are the KEY=VALUE of the node's line in power.conf, as POWER_KEY; grace=S and force=yes are every back
# end's: S s after switch_off a machine that is still on is switched off hard. What it prints last goes to the log.
# shellcheck shell=sh

fail() { printf '%s\n' "$*" >&2; exit 1; }
refuse() { printf '%s\n' "$*" >&2; exit 4; } # it makes no sense to try again

need() { # SETTING...: each must be set
  for setting in "$@"; do
    eval "value=\${POWER_$setting:-}"
    # shellcheck disable=SC2154  # because the line above sets it
    [ -n "$value" ] || refuse "power.conf: this back end needs $(printf %s "$setting" | tr '[:upper:]' '[:lower:]')="
  done
}

first_of() { # PROGRAM...: print the first that there is
  for program in "$@"; do command -v "$program" >/dev/null && { printf '%s\n' "$program"; return; }; done
  refuse "none of these is installed: $*"
}

# A secret that others can read is none. Only its path is ever on a command line or in the environment.
check_secret() {
  need SECRET
  # shellcheck disable=SC2012  # because ls is the one that POSIX has, and the name is not looked at
  about=$(ls -ldnL -- "$POWER_SECRET" 2>/dev/null | awk '{ print $1, $3 }')
  case $about in
  '') refuse "the secret $POWER_SECRET is not there" ;;
  -r[w-]-------" "* | -r[w-]-------.\ *) ;; # a dot: SELinux; a plus would be an access list
  *) refuse "the secret $POWER_SECRET must be a file that its owner alone can read: chmod 600 $POWER_SECRET" ;;
  esac
  case ${about##* } in
  0 | "$(id -u)") ;;
  *) refuse "the secret $POWER_SECRET must belong to root or to $(id -un)" ;;
  esac
  [ -r "$POWER_SECRET" ] || refuse "the secret $POWER_SECRET cannot be read by $(id -un)"
}
secret() { head -n 1 -- "$POWER_SECRET" | tr -d '\r\n'; }

# What a tool says may repeat what it was told.
without_secret() { # FILE: its last line that says something, on one line
  awk 'FNR == NR { if (FNR == 1) secret = $0; next }
       NF { line = $0 }
       END { while (secret != "" && (at = index(line, secret)))
               line = substr(line, 1, at - 1) "***" substr(line, at + length(secret))
             print line }' "$POWER_SECRET" "$1"
}

make_work_folder() {
  work=$(mktemp -d) || fail "no temporary folder"
  trap 'leave; rm -rf "$work"' EXIT
  trap 'exit 1' HUP INT TERM
}
begin() { :; } # before a machine is asked anything, and afterwards, whatever happened: a back end may need a session
leave() { :; }

now() { date +%s; }

wait_until() { # on|off: as long as power.sh gives it
  since=$(now)
  while [ "$(state 2>/dev/null)" != "$1" ]; do
    if [ "$1" = off ] && [ "${POWER_FORCE:-no}" = yes ] && [ $(($(now) - since)) -ge "${POWER_GRACE:-90}" ]; then
      force_off; POWER_FORCE=no
    fi
    sleep "$POWER_POLL"
  done
}

settled() { # print on or off, once it is one of them
  while :; do
    is=$(state) || return 1
    [ "$is" = changing ] || break
    sleep "$POWER_POLL"
  done
  printf '%s\n' "$is"
}

run() { # on|off|state|check NODE
  ready || exit
  make_work_folder
  case $1 in
  check) echo "in order"; exit ;;
  esac
  begin || exit
  case $1 in
  state) state ;;
  off)
    is=$(settled) || exit
    if [ "$is" = off ]; then rm -f "$POWER_LEAVING"; echo "it was off"; exit; fi
    switch_off || exit
    : >"$POWER_LEAVING"
    wait_until off
    rm -f "$POWER_LEAVING"
    echo "it is off" ;;
  on)
    is=$(settled) || exit
    # It was told to go off and is not: "on" now would be off a moment later.
    if [ "$is" = on ] && [ -e "$POWER_LEAVING" ]; then echo "it still goes off"; wait_until off; is=off; fi
    rm -f "$POWER_LEAVING"
    if [ "$is" = on ]; then echo "it was on"; exit; fi
    switch_on || exit
    wait_until on
    echo "it is on" ;;
  *) refuse "unknown: $1" ;;
  esac
}
