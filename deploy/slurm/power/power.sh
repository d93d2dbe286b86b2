#!/bin/sh
# Switches nodes on and off as Slurm asks, each by the back end that power.conf names for it. Slurm waits for nothing:
# what is asked is noted, the work goes on in the background, several nodes at once, each with a time limit and retries.
set -uf

# Slurm starts its programs with all three closed (22.05), and what is opened next would take their numbers.
case ${1:-}.$#.${2:-} in
*.2.--wait) ;;
off.2.* | on.2.*)
  exec </dev/null >/dev/null
  [ -t 2 ] || exec 2>/dev/null ;;
esac

usage() { cat <<'TEXT'
usage: power.sh off|on [--wait] NODES   as Slurm calls it, through suspend and resume; NODES as in gpu[01-04,07]
       power.sh state NODES             say which are on, off, or cannot be asked
       power.sh check [NODES]           say what is wrong with power.conf, the secrets and the tools; asks no machine

  --wait   come back when all is done, and say how it went; for trying by hand

The settings are in power.conf beside this program, or in the file that POWER_CONF names.
Exit status: 0 accepted (with --wait: all done); 1 something is wrong, the log says what; 2 misused.
TEXT
}

# --- settings ---------------------------------------------------------------------------------------------------------

setting() { # NAME DEFAULT
  awk -v name="$1" -v value="$2" '$1 == name { value = $2 } END { print value }' "$conf"
}

stop() { # STATUS WORDS...: before there is a log
  status=$1; shift
  printf 'power.sh: %s\n' "$*" >&2
  logger -t slurm-power -p daemon.err -- "$*" </dev/null >/dev/null 2>&1
  exit "$status"
}

read_settings() {
  [ -r "$conf" ] || stop 2 "$conf cannot be read"
  folder=$(setting folder /var/lib/slurm-power)
  log=$(setting log /var/log/slurm/power.log)
  parallel=$(setting parallel 16) timeout=$(setting timeout 120) tries=$(setting tries 3) pause=$(setting pause 10)
  POWER_POLL=$(setting poll 5); export POWER_POLL
  for number in "$parallel" "$timeout" "$tries" "$pause" "$POWER_POLL"; do
    case $number in '' | *[!0-9]*) stop 2 "$conf: $number is not a whole number" ;; esac
  done
  # To xargs and timeout none is no limit.
  case $parallel:$timeout in 0:* | *:0) stop 2 "$conf: parallel and timeout must not be 0" ;; esac
  mkdir -p -- "$folder"
  [ -w "$folder" ] || stop 1 "$folder cannot be written"
}

names() { scontrol show hostnames "$1" </dev/null; }

# The lines "nodes LIST BACKEND KEY=VALUE...", one node a line: NODE BACKEND KEY=VALUE...; the first that names it counts.
map() {
  awk '$1 == "nodes" && NF >= 3 { $1 = ""; print substr($0, 2) }' "$conf" | while read -r list rest; do
    names "$list" | while read -r node; do printf '%s %s\n' "$node" "$rest"; done
  done | awk '!($1 in seen) { seen[$1]; print }'
}

# --- what became of it ------------------------------------------------------------------------------------------------

say() { # PRIORITY WORDS...: to the log, to syslog, and to whoever waits
  priority=$1; shift
  printf '%s %s\n' "$(date -u '+%Y-%m-%dT%H:%M:%SZ')" "$*" >>"$log"
  logger -t slurm-power -p "daemon.$priority" -- "$*" </dev/null >/dev/null 2>&1
  [ -z "${POWER_WAIT:-}" ] || printf '%s\n' "$*" >&3
}

# --- all nodes of an order --------------------------------------------------------------------------------------------

accept() { # off|on|state|check NODES: into files, what is asked of whom
  order=$(date +%s).$$ status=0
  list=$(names "$2")
  [ -n "$list" ] || { say err "$1 $2: not a list of nodes"; exit 2; }
  map >"$folder/order.$order"
  for node in $list; do
    if awk -v node="$node" '$1 == node { found = 1 } END { exit !found }' "$folder/order.$order"; then
      printf '%s\n' "$node"
    else
      say err "$1 $node failed: $conf has no line for it"; status=1
    fi
  done >"$folder/nodes.$order"
}

# The newest order for a node counts: an older one that is still being tried gives way to it.
note_what_is_wanted() { # off|on
  while read -r node; do
    printf '%s %s\n' "$1" "$order" >"$folder/$node.new.$$" && mv "$folder/$node.new.$$" "$folder/$node.wanted"
  done <"$folder/nodes.$order"
}

switch() { # off|on NODES
  accept "$@"
  note_what_is_wanted "$1"
  if [ -n "${POWER_WAIT:-}" ]; then
    work "$1" "$order" || status=1
  else
    # In a session of its own first, then in the background: Slurm ends what is left of its program's process group.
    setsid sh -c '"$@" &' - "$here/power.sh" work "$1" "$order" </dev/null >/dev/null 2>&1 3>&- || status=1
  fi
  exit $status
}

ask() { # state|check NODES
  POWER_WAIT=yes # whoever asks hears what is wrong
  accept "$@"
  work "$1" "$order" || status=1
  exit $status
}

work() { # WHAT ORDER
  worked=0
  [ ! -s "$folder/nodes.$2" ] || xargs -n 1 -P "$parallel" "$here/power.sh" one "$1" "$2" <"$folder/nodes.$2" || worked=1
  rm -f "$folder/nodes.$2" "$folder/order.$2"
  return $worked
}

# --- one node ---------------------------------------------------------------------------------------------------------

one() { # off|on ORDER NODE
  try=1
  while :; do
    # One try at a time for each node: a machine that is still going down is waited for before it is switched on.
    attempt "$@" 9>"$folder/$3.lock"
    case $? in
    0) say info "$1 $3 done: $answer (try $try)"; return 0 ;;
    3) say notice "$1 $3 dropped: $answer"; return 0 ;;
    4) say err "$1 $3 refused: $answer"; return 1 ;;
    esac
    [ "$try" -lt "$tries" ] || break
    say warning "$1 $3 failed, to be tried again: $answer (try $try of $tries)"
    try=$((try + 1))
    sleep "$pause"
  done
  say err "$1 $3 failed: $answer (try $try of $tries)"
  return 1
}

# 0 done, 1 failed, 3 no longer wanted, 4 refused; what there is to say in $answer.
attempt() { # off|on ORDER NODE
  flock 9 || { answer="$folder/$3.lock cannot be locked"; return 1; }
  [ "$(cat "$folder/$3.wanted")" = "$1 $2" ] || { answer="something newer is wanted of it"; return 3; }
  [ "$1" = on ] || no_job_is_on "$3" || return
  backend "$1" "$3" "$folder/order.$2"
}

# Slurm asks for idle nodes only; but a try may come late, and a person may call this by hand.
no_job_is_on() { # NODE
  answer="Slurm does not say whether jobs are there"
  jobs=$(timeout "$timeout" squeue -h -a -w "$1" -t R,S,CF,CG -o %A 9>&- </dev/null 2>/dev/null) || return 1
  [ -z "$jobs" ] || { answer="job $(printf %s "$jobs" | tr '\n' ' ') is there"; return 4; }
}

tell() { # state|check ORDER NODE
  if backend "$1" "$3" "$folder/order.$2"; then printf '%s: %s\n' "$3" "$answer"
  else printf '%s: PROBLEM: %s\n' "$3" "$answer"; return 1
  fi
}

backend() { # off|on|state|check NODE MAP: by the program of its line, with the line's settings in the environment
  line=$(awk -v node="$2" '$1 == node { print; exit }' "$3")
  program=$(printf '%s\n' "$line" | awk '{ print $2 }')
  case $program in *[!a-z0-9_-]*) answer="$program is not the name of a back end"; return 4 ;; esac
  [ -x "$here/$program.sh" ] || { answer="there is no back end $here/$program.sh"; return 4; }
  said=$folder/$2.said.$$
  (
    for word in $(printf '%s\n' "$line" | awk '{ for (i = 3; i <= NF; i++) print $i }'); do
      key=$(printf %s "${word%%=*}" | tr '[:lower:]' '[:upper:]')
      case $key in
      PASS* | *[!A-Z_]*) echo "${word%%=*} is not a setting (of a password: secret=FILE)" >"$said"; exit 4 ;;
      esac
      export "POWER_$key=$(printf '%s\n' "${word#*=}" | awk -v node="$2" '{ gsub(/%n/, node); print }')"
    done
    POWER_LEAVING=$folder/$2.leaving; export POWER_LEAVING
    exec timeout -k 5 "$timeout" "$here/$program.sh" "$1" "$2" </dev/null >"$said" 2>&1 9>&- 3>&-
  )
  worked=$?
  answer=$(tail -n 1 "$said")
  rm -f "$said"
  case $worked in 124 | 137) answer="given up after $timeout s${answer:+: $answer}"; worked=1 ;; esac
  return $worked
}

# ----------------------------------------------------------------------------------------------------------------------

PATH=${PATH:+$PATH:}/usr/sbin:/usr/bin:/sbin:/bin; export PATH # what Slurm starts may have none
LC_ALL=C; export LC_ALL
umask 077
here=$(cd -- "$(dirname -- "$0")" && pwd) || exit 1
conf=${POWER_CONF:-$here/power.conf}
for name in $(env | sed -n 's/^\(POWER_[A-Z_]*\)=.*/\1/p'); do # settings of a node come from its line alone
  case $name in POWER_CONF | POWER_WAIT) ;; *) unset "$name" ;; esac
done
exec 3>&1

what=${1:-}
[ $# -eq 0 ] || shift
if [ "${1:-}" = --wait ]; then POWER_WAIT=yes; export POWER_WAIT; shift; fi
case $what.$# in
off.1 | on.1) read_settings; switch "$what" "$1" ;;
state.1) read_settings; ask state "$1" ;;
check.1) read_settings; ask check "$1" ;;
check.0) read_settings; ask check "$(map | awk '{ printf "%s%s", sep, $1; sep = "," }')" ;;
work.2) read_settings; work "$@" ;; # called by itself
one.3) read_settings; case $1 in on | off) one "$@" ;; *) tell "$@" ;; esac ;;
-h.0 | --help.0) usage ;;
*) usage >&2; exit 2 ;;
esac
