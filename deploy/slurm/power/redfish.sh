#!/bin/sh
# Back end: a management controller that speaks Redfish, by curl.
# Settings: url=https://%n-bmc/redfish/v1/Systems/1  user=  secret=FILE (the password, alone on its line)
#           auth=basic (or session)  cacert=FILE  insecure=yes (its certificate is not checked, or it speaks plain http)
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname -- "$0")/backend.sh"

ready() {
  need URL USER
  check_secret
  case ${POWER_AUTH:-basic} in basic | session) ;; *) refuse "power.conf: auth=basic or auth=session" ;; esac
  case $POWER_URL in
  https://*) ;;
  *) [ "${POWER_INSECURE:-no}" = yes ] || refuse "power.conf: $POWER_URL would show the password to the network: https" ;;
  esac
  first_of curl >/dev/null || exit
  site=$(printf %s "$POWER_URL" | sed 's|^\([a-z]*://[^/]*\).*|\1|')
  protocol=https
  [ "${POWER_INSECURE:-no}" != yes ] || protocol=https,http
}

escaped() { sed 's/[\\"]/\\&/g'; }

# A controller names where to send what, and the password or token goes along: only ever to a path on itself.
path_here() { # ADDRESS: the path that it is on this controller; fails where it is none, or one that leads elsewhere
  case $1 in "$site"/*) found=${1#"$site"} ;; *) found=$1 ;; esac
  case $found in
  *[!A-Za-z0-9._~/:@-]* | *//* | */../* | */.. | */./* | */.) return 1 ;;
  /redfish/*) printf %s "$found" ;;
  *) return 1 ;;
  esac
}

# All that is secret goes to curl through its standard input: no file, no argument, no environment.
call() { # METHOD URL [BODY]: the answer in $work/body, its headers in $work/headers; fails unless it is a 2xx
  code=$(
    {
      printf 'request = "%s"\nurl = "%s"\n' "$1" "$(printf %s "$2" | escaped)"
      printf 'header = "Accept: application/json"\n'
      [ -z "${POWER_CACERT:-}" ] || printf 'cacert = "%s"\n' "$POWER_CACERT"
      [ "${POWER_INSECURE:-no}" != yes ] || printf 'insecure\n'
      [ -z "${3:-}" ] || printf 'header = "Content-Type: application/json"\ndata = "%s"\n' "$(printf %s "$3" | escaped)"
      credentials
    } | curl -q -sS -K - --globoff --proto "=$protocol" --max-redirs 0 --max-time 30 -D "$work/headers" -o "$work/body" -w '%{http_code}' 2>"$work/said"
  ) || { echo "$site: $(without_secret "$work/said")" >&2; return 1; }
  case $code in 2??) return ;; esac
  message=$(tr -d '\r\n' <"$work/body" | sed -n 's/.*"message" *: *"\([^"]*\)".*/\1/p' >"$work/said"; without_secret "$work/said")
  echo "$site: $1 was answered with $code${message:+: $message}" >&2
  return 1
}

credentials() {
  if [ "${POWER_AUTH:-basic}" = basic ]; then
    printf 'user = "%s:%s"\n' "$(printf %s "$POWER_USER" | escaped)" "$(secret | escaped)"
  elif [ -n "${token:-}" ]; then
    printf 'header = "X-Auth-Token: %s"\n' "$(printf %s "$token" | escaped)"
  fi
}

token='' session=''
begin() {
  [ "${POWER_AUTH:-basic}" = session ] || return 0
  call POST "$site/redfish/v1/SessionService/Sessions" \
    "{\"UserName\":\"$(printf %s "$POWER_USER" | escaped)\",\"Password\":\"$(secret | escaped)\"}" || return
  token=$(header X-Auth-Token)
  session=$(path_here "$(header Location)") || echo "$site: its session has no address on itself, and is not ended" >&2
  [ -n "$token" ] || { echo "$site: a session without a token" >&2; return 1; }
}
header() { tr -d '\r' <"$work/headers" | awk -v name="$1" 'tolower($1) == tolower(name) ":" { print $2 }'; }

leave() { # a controller has few sessions
  [ -n "$session" ] || return 0
  call DELETE "$site$session" 2>/dev/null
}

system() { call GET "$POWER_URL" && tr -d '\r\n' <"$work/body" >"$work/system"; }

state() {
  system || return
  case $(sed -n 's/.*"PowerState" *: *"\([A-Za-z]*\)".*/\1/p' "$work/system") in
  On) echo on ;;
  Off) echo off ;;
  Powering*) echo changing ;;
  *) echo "$site: $POWER_URL tells no PowerState" >&2; return 1 ;;
  esac
}

printable() { printf %s "$1" | LC_ALL=C tr -cd '[:print:]' | cut -c 1-200; }

reset() { # TYPE: refused here where the controller lists what it takes and this is not among it
  system || return
  takes=$(sed -n 's/.*"ResetType@Redfish.AllowableValues" *: *\[\([^]]*\)\].*/\1/p' "$work/system")
  case ,$takes, in
  ,, | *\"$1\"*) ;;
  *) refuse "$site does not take $1, but $takes" ;;
  esac
  target=$(sed -n 's/.*"#ComputerSystem.Reset" *: *{[^}]*"target" *: *"\([^"]*\)".*/\1/p' "$work/system")
  path=$(path_here "${target:-$POWER_URL/Actions/ComputerSystem.Reset}") ||
    refuse "$site names an address that is not its own for a reset, and gets no password there: $(printable "$target")"
  call POST "$site$path" "{\"ResetType\":\"$1\"}"
}
switch_on() { reset On; }
switch_off() { reset GracefulShutdown; }
force_off() { reset ForceOff; }

run "$@"
