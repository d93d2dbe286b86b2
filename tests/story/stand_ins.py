"""Machines and the tools that switch them, of shell and files; they behave: keep state, refuse, hang, take time."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import TEST_TIMEOUT_S

POWER = Path(__file__).parents[2] / "deploy" / "slurm" / "power"
PASSWORD = r'p"w\ #1'
"""With all that a file format could stumble on."""

COMMON = r"""
F={folder}
enter() {{ # MACHINE: what whoever looks can see of it, then what goes wrong
  printf '%s %s\n' "${{0##*/}}" "$ARGS" >>$F/argv
  {{ env; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' '; }} >>$F/seen
  : >$F/running/$$; ls $F/running | wc -l >>$F/at_once; trap 'rm -f $F/running/$$' EXIT
  [ ! -x $F/hook ] || $F/hook
  if rm $F/hangs/$1 2>/dev/null; then : >$F/hung/$1; read -r go <$F/fifo; fi
  left=$(cat $F/fails/$1 2>/dev/null || echo 0)
  [ "$left" -le 0 ] || {{ echo $((left - 1)) >$F/fails/$1; return 1; }}
}}
power_of() {{
  if [ -e $F/leaving/$1 ]; then
    left=$(cat $F/leaving/$1)
    if [ "$left" = 0 ]; then echo off >$F/machines/$1; rm $F/leaving/$1
    elif [ "$left" != never ]; then echo $((left - 1)) >$F/leaving/$1; fi
  fi
  cat $F/machines/$1
}}
soft() {{ cat $F/leaves/$1 2>/dev/null >$F/leaving/$1 || echo 0 >$F/leaving/$1; }}
hard() {{ echo $2 >$F/machines/$1; rm -f $F/leaving/$1; }}
ARGS=$*
"""

TOOLS = {
    "ipmipower": r"""
for word in "$@"; do
  case $word in
  --config-file=*) password=$(sed -n 's/^password "\(.*\)"$/\1/p' "${word#*=}" | sed 's/\\\(.\)/\1/g') ;;
  esac
  [ "${before:-}" != -h ] || host=$word
  before=$word
done
machine=${host%-bmc}
enter $machine || { echo "$host: connection timeout"; exit 1; }
[ "$password" = "$(cat $F/password)" ] || { echo "$host: password invalid"; exit 1; }
case $before in
--stat) echo "$host: $(power_of $machine)" ;;
--on | --off) hard $machine ${before#--}; echo "$host: ok" ;;
--soft) soft $machine; echo "$host: ok" ;;
esac
""",
    "ipmitool": r"""
while getopts I:H:U:f: option; do case $option in H) host=$OPTARG ;; f) file=$OPTARG ;; esac; done
shift $((OPTIND - 1))
machine=${host%-bmc}
enter $machine || { echo "Error: Unable to establish IPMI v2 / RMCP+ session"; exit 1; }
[ "$(cat $file)" = "$(cat $F/password)" ] || { echo "Invalid password $(cat $file)"; exit 1; }
case $3 in
status) echo "Chassis Power is $(power_of $machine)" ;;
on | off) hard $machine $3 ;;
soft) soft $machine ;;
esac
""",
    "curl": r"""
while [ $# -gt 0 ]; do case $1 in -D) headers=$2 ;; -o) body=$2 ;; esac; shift; done
cat >$F/request.$$
of() { sed -n "s/^$1 = \"\(.*\)\"$/\1/p" $F/request.$$ | sed 's/\\\(.\)/\1/g'; }
url=$(of url) method=$(of request) data=$(of data) user=$(of user) token=$(of header | sed -n 's/^X-Auth-Token: //p')
rm $F/request.$$
echo "$method $url" >>$F/asked
machine=${url#https://}; machine=${machine%%-bmc*}
target=/redfish/v1/Systems/1/Actions/ComputerSystem.Reset; [ ! -e $F/target ] || target=$(cat $F/target)
location=/redfish/v1/SessionService/Sessions; [ ! -e $F/location ] || location=$(cat $F/location)
answer() { printf 'HTTP/1.1 %s\r\n%s\r\n' "$1" "${3:-}" >$headers; printf '%s' "$2" >$body; printf '%s' "$1"; exit 0; }
enter $machine || { echo "curl: (28) Connection timed out after 30000 milliseconds" >&2; exit 28; }
case $method$url in
POST*/Sessions)
  wanted=$(printf '{"UserName":"admin","Password":"%s"}' "$(sed 's/[\\"]/\\&/g' $F/password)")
  [ "$data" = "$wanted" ] || answer 401 '{"error": {"message": "no such user"}}'
  echo t0ken.$$ >$F/sessions/$$
  answer 201 '{}' "X-Auth-Token: t0ken.$$
Location: $location/$$" ;;
esac
[ "$user" = "admin:$(cat $F/password)" ] || { [ -n "$token" ] && grep -rqx "$token" $F/sessions; } ||
  answer 401 "{\"error\": {\"message\": \"denied: $user\"}}"
case $method$url in
DELETE*/Sessions/*) rm $F/sessions/${url##*/}; answer 204 '' ;;
GET*) answer 200 "{\"Id\": \"1\", \"PowerState\": \"$(power_of $machine | sed 's/on/On/;s/off/Off/')\", \"Actions\": {
  \"#ComputerSystem.Reset\": {\"target\": \"$target\",
  \"ResetType@Redfish.AllowableValues\": [\"On\", \"ForceOff\", \"GracefulShutdown\"]}}}" ;;
POST*/Actions/ComputerSystem.Reset)
  case $data in *GracefulShutdown*) soft $machine ;; *ForceOff*) hard $machine off ;; *) hard $machine on ;; esac
  answer 204 '' ;;
esac
""",
    "wakeonlan": 'for mac in "$@"; do :; done; enter $mac && hard $mac on',
    "ping": 'for host in "$@"; do :; done; [ "$(power_of $host)" = on ]',
    "ssh": r"""
for word in "$@"; do case $word in *@*) host=${word#*@} ;; esac; done
enter $host || { echo "root@$host: Permission denied (publickey)." >&2; exit 255; }
soft $host; echo "Connection to $host closed by remote host." >&2; exit 255
""",
    "site-start": "enter $1 && hard $1 on",
    "site-stop": "enter $1 && soft $1",
    "site-status": "enter $1 && power_of $1",
    "scontrol": 'printf "%s\\n" "$3" | tr , "\\n"',
    "squeue": "[ ! -e $F/no_answer ] && cat $F/jobs/$4 2>/dev/null; [ ! -e $F/no_answer ]",
    "logger": 'printf "%s\\n" "$*" >>$F/syslog',
}

LINES = {
    "ipmipower": "ipmi host=%n-bmc user=admin secret={secret}",
    "ipmitool": "ipmi host=%n-bmc user=admin secret={secret}",
    "redfish": "redfish url=https://%n-bmc/redfish/v1/Systems/1 user=admin secret={secret}",
    "redfish session": "redfish url=https://%n-bmc/redfish/v1/Systems/1 user=admin secret={secret} auth=session",
    "wol": "wol mac=%n secret={secret}",
    "cloud": "cloud start={folder}/bin/site-start stop={folder}/bin/site-stop status={folder}/bin/site-status",
}
"""A line of power.conf for each way, without the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a program ended and what it printed."""

    status: int
    said: str


@dataclass(slots=True, kw_only=True)
class MachineRoom:
    """Machines n1, n2, ..., all on, below ``folder``, which are switched by ``way``, one of ``LINES``."""

    folder: Path
    way: str = "ipmipower"
    more: str = ""
    settings: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("bin", "machines", "leaves", "leaving", "fails", "hangs", "hung", "running", "sessions", "jobs"):
            (self.folder / name).mkdir()
        for name, text in TOOLS.items():
            if name != "ipmipower" or self.way != "ipmitool":
                self.write(f"bin/{name}", "#!/bin/sh\n" + COMMON.format(folder=self.folder) + text, mode=0o755)
        os.mkfifo(self.folder / "fifo")
        self.write("password", PASSWORD)
        self.write("secret", PASSWORD + "\n", mode=0o600)
        for node in ("n1", "n2", "n3", "n4"):
            self.write(f"machines/{node}", "on\n")
        self.configure()

    def configure(self, nodes: str = "n1,n2,n3,n4", way: str = "", **settings: int) -> None:
        """Write power.conf anew."""
        chosen = {"parallel": 4, "timeout": 600, "tries": 1, "pause": 0, "poll": 0} | self.settings | settings
        line = LINES[way or self.way].format(folder=self.folder, secret=self.folder / "secret")
        rows = [f"folder {self.folder / 'state'}", f"log {self.folder / 'log'}", f"nodes {nodes} {line} {self.more}"]
        self.write("power.conf", "\n".join([*rows, *(f"{name} {value}" for name, value in chosen.items())]) + "\n")

    def write(self, name: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file, a knob of the stand-ins: ``fails/n1`` 2, ``leaves/n1`` never, ``hangs/n1``, ``jobs/n1`` 7.

        The first call that finds ``hangs/n1`` hangs, once, until somebody writes a line into ``fifo``.
        """
        path = self.folder / name
        path.write_text(text)
        path.chmod(mode)

    def read(self, name: str) -> str:
        """Return what a file says; empty where there is none."""
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def is_on(self, node: str) -> bool:
        """Say whether the machine is on."""
        return self.read(f"machines/{node}").strip() == "on"

    def start(self, *words: str, program: str = "power.sh") -> subprocess.Popen[str]:
        """Start one of the programs, in a process group of its own as Slurm does."""
        return subprocess.Popen(
            [str(POWER / program), *words],
            env={"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "POWER_CONF": str(self.folder / "power.conf")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            process_group=0,
        )

    def run(self, *words: str, program: str = "power.sh") -> Ran:
        """Run one of the programs to its end, and to that of all that holds its output."""
        started = self.start(*words, program=program)
        said, _ = started.communicate(timeout=TEST_TIMEOUT_S)
        return Ran(status=started.returncode, said=said)
