#!/bin/sh
# Takes Helios off a cluster, with Helios, its database and Python broken or gone: a shell, awk and Slurm's own
# commands are enough. What Helios wrote to jobs is known by its mark, so no record of it is needed: a SiteFactor whose
# last two digits are 37, a TimeMin whose minutes end in 7. What it did to nodes stands in a file that it wrote before it
# did it. Run it as root, SlurmUser or a Slurm administrator; for jobs alone an operator will do.
set -u

usage() { cat <<'TEXT'
usage: helios-release.sh [--dry-run] [--jobs-only | --nodes-only] [--keep-unseen] [--wait SECONDS]
                         [--state FOLDER] [--table FILE]

  1. creates FOLDER/PAUSED, so that Helios and the priority hook change nothing more
  2. removes the priority hook's table
  3. sets SiteFactor and TimeMin of every pending job that carries Helios's mark back to none
  4. sets weights of nodes and SuspendExcNodes back to the site's own, and wakes every node that Helios put to sleep;
     one that is falling asleep can only be woken when it is asleep, and is waited for
  5. reads it all back

Of an array that carries the mark, every pending task is set to none, also one that somebody else has changed. What
Helios did to nodes stands in FOLDER/nodes.undo; when all of it is taken back, that becomes nodes.undo.released. A node
that is drained or under maintenance meanwhile is left to its admin, as it is. Where there is a FOLDER-power, the state
folder of helios-power.service, that Helios is paused and its nodes.undo taken back too, unless --jobs-only.

  --dry-run      say what would be done, do nothing
  --jobs-only    leave nodes as they are
  --nodes-only   leave jobs and the hook's table as they are
  --wait SECONDS how long to wait for nodes that are falling asleep; default Slurm's SuspendTimeout and a minute
  --keep-unseen  leave the jobs alone whose SiteFactor Slurm does not show (held, waiting for a time or for another
                 job); without it they are set to none too, and what their priority was and became is printed
  --state FOLDER Helios's control.state_folder; default $HELIOS_CONTROL_STATE_FOLDER, else /var/lib/helios
  --table FILE   the hook's table; default FOLDER/hook/table

Exit status: 0 read back, nothing is left; 1 something is left or could not be read; 2 misused.
To let Helios work again: helios resume, or rm FOLDER/PAUSED; and rm FOLDER-power/PAUSED, if there is one
TEXT
}

dry= keep= table= jobs=yes nodes=yes limit=
state=${HELIOS_CONTROL_STATE_FOLDER:-/var/lib/helios}
while [ $# -gt 0 ]; do
  case $1 in
  -n | --dry-run) dry=yes ;;
  --keep-unseen) keep=yes ;;
  --jobs-only) nodes= ;;
  --nodes-only) jobs= ;;
  --state | --table | --wait)
    [ $# -ge 2 ] && [ -n "$2" ] || { echo "helios-release: $1 needs a value" >&2; exit 2; }
    case $1 in --state) state=$2 ;; --table) table=$2 ;; --wait) limit=$2 ;; esac
    shift ;;
  -h | --help) usage; exit 0 ;;
  *) echo "helios-release: unknown: $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
[ -n "$jobs$nodes" ] || { echo "helios-release: --jobs-only and --nodes-only leave nothing to do" >&2; exit 2; }
case $limit in *[!0-9]*) echo "helios-release: --wait takes seconds, not: $limit" >&2; exit 2 ;; esac
state=${state%/} table=${table:-$state/hook/table}

BATCH=200  # job ids in one scontrol: 200 ids of ten digits are far below any limit of a command line
PASSES=4   # jobs come, go and become eligible while this runs

say() { printf 'helios-release: %s\n' "$*"; }
bad=0
problem() { say "PROBLEM: $*" >&2; bad=1; }

for program in ${jobs:+squeue sprio} scontrol awk sort mktemp; do
  command -v "$program" >/dev/null || { problem "$program is not on PATH"; exit 1; }
done
# The environment of whoever runs this must not filter or reformat what Slurm prints.
for name in $(env | sed -n 's/^\(S\(QUEUE\|PRIO\|CONTROL\)_[A-Z_]*\|SLURM_CLUSTERS\|SLURM_TIME_FORMAT\|SLURM_BITSTR_LEN\)=.*/\1/p'); do
  unset "$name"
done
LC_ALL=C; export LC_ALL
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# NAME PROGRAM FILE...: what awk makes of the files, sorted, once each. No pipe: the failure of any part must show.
sift() {
  name=$1; shift
  awk "$@" >"$work/raw" && sort -u "$work/raw" >"$work/$name"
}

# Pending jobs into files of lines: factors (id SiteFactor) and queue (id TimeMin priority); from them, ids.
# sprio names a job once for each of its partitions, an array once by its master id.
# TimeMin is [days-]hours:minutes:seconds or minutes:seconds.
look() {
  squeue -h -a -t PD -O 'JobID:24,MinTime:24,PriorityLong:24' >"$work/squeue" &&
    sprio -h -o '%i %S' >"$work/sprio" &&
    sift factors 'NF >= 2 { print $1, $2 }' "$work/sprio" &&
    sift queue 'NF >= 3 { print $1, $2, $3 }' "$work/squeue" &&
    sift marked '{ size = $2 < 0 ? -$2 : $2; if (size % 100 == 37) print $1 }' "$work/factors" &&
    sift unseen 'FILENAME == ARGV[1] { seen[$1]; next } !($1 in seen) { print $1 }' "$work/factors" "$work/queue" &&
    sift limited '{ n = split($2, part, /[-:]/); if (n >= 2 && part[n - 1] % 10 == 7) print $1 }' "$work/queue"
}

count() { awk 'END { print NR }' "$1"; }

# FIELD=VALUE FILE [KIND]: a job that has started or ended meanwhile is refused and needs nothing; the look afterwards
# decides.
write() {
  awk -v most=$BATCH '{ line = line (n++ ? "," : "") $1; if (n == most) { print line; line = ""; n = 0 } }
       END { if (n) print line }' "$2" >"$work/batches"
  while read -r ids; do
    scontrol update "${3:-jobid}=$ids" "$1" >>"$work/answers" 2>&1 </dev/null ||
      printf '%s\n' "$ids" | tr , '\n' >>"$work/refused"
  done <"$work/batches"
}

pause() {
  if [ -e "$1/PAUSED" ]; then say "$1/PAUSED is there"
  elif [ -n "$dry" ]; then say "would create $1/PAUSED"
  elif mkdir -p "$1" && echo "helios-release.sh, $(date -u '+%Y-%m-%d %H:%M:%S') UTC" >"$1/PAUSED"; then
    say "created $1/PAUSED"
  else problem "$1/PAUSED cannot be created: stop Helios yourself"
  fi
}

retract() {
  if [ ! -e "$table" ]; then say "no table at $table"
  elif [ -n "$dry" ]; then say "would remove $table"
  elif rm -f "$table"; then say "removed $table"
  else problem "$table cannot be removed: the hook goes by it until it expires"
  fi
}

# Jobs whose SiteFactor Slurm hides, on two looks: the priority tells what was taken back, except of held jobs.
release_unseen() {
  [ -z "$keep" ] && [ -s "$work/unseen" ] || return 0
  cp "$work/unseen" "$work/once" || return 1
  sleep 2 # a job just submitted, or a controller just reconfigured, is not in sprio for a moment
  look || return 1
  sift blind 'FILENAME == ARGV[1] { once[$1]; next } $1 in once { print $1 }' "$work/once" "$work/unseen" || return 1
  [ -s "$work/blind" ] || return 0
  awk 'FILENAME == ARGV[1] { hidden[$1]; next } $1 in hidden { print $1, $3 }' "$work/blind" "$work/queue" >"$work/before"
  : >"$work/refused"
  write SiteFactor=0 "$work/blind"
  while read -r id; do # of a batch that was refused, Slurm changed those it could
    scontrol update "jobid=$id" SiteFactor=0 </dev/null >/dev/null 2>&1 || echo "$id"
  done <"$work/refused" >"$work/stubborn"
  look || return 1
  sift stuck 'FILENAME == ARGV[1] { no[$1]; next } $1 in no { print $1 }' "$work/stubborn" "$work/unseen" || return 1
  [ ! -s "$work/stuck" ] || problem "$(count "$work/stuck") jobs that Slurm does not show the SiteFactor of were refused"
  say "set SiteFactor of $(count "$work/blind") pending jobs to none that Slurm does not show it of"
  awk 'FILENAME == ARGV[1] { was[$1] = $2; next }
       $1 in was && was[$1] != $3 {
         gone = was[$1] - $3; size = gone < 0 ? -gone : gone
         printf "helios-release: job %s: priority %s, was %s%s\n", $1, $3, was[$1], size % 100 == 37 ? "" : \
           "; that was not Helios'\''s: scontrol update jobid=" $1 " SiteFactor=" gone }' "$work/before" "$work/queue"
}

report_only() {
  say "would set SiteFactor of $(count "$work/marked") pending jobs to none"
  say "would set TimeMin of $(count "$work/limited") pending jobs to none"
  say "SiteFactor of $(count "$work/unseen") pending jobs is not shown by Slurm;" \
    "would ${keep:+not }set it to none"
}

# For Helios' next turn: what it then finds gone was taken back by nobody who wants that job or node left alone. Not with
# ":", after whose failed redirection a shell ends.
leave_word() { { true >"$1"; } 2>/dev/null || say "$1 cannot be created"; }

release_marked() {
  leave_word "$state/RELEASED"
  pass=0
  while [ -s "$work/marked" ] || [ -s "$work/limited" ]; do
    pass=$((pass + 1)); [ $pass -le $PASSES ] || break
    say "SiteFactor of $(count "$work/marked") and TimeMin of $(count "$work/limited") pending jobs: setting to none"
    write SiteFactor=0 "$work/marked"
    write TimeMin=0 "$work/limited"
    look || return 1
  done
}

tell_answers() {
  [ ! -s "$work/answers" ] || { say "Slurm's answers:"; sort "$work/answers" | uniq -c | sort -rn | head -n 5; } >&2
}

judge_jobs() {
  if [ -s "$work/marked" ] || [ -s "$work/limited" ]; then
    problem "SiteFactor of $(count "$work/marked") and TimeMin of $(count "$work/limited") jobs still stand:" \
      "$(sort -u "$work/marked" "$work/limited" | head -n 10 | tr '\n' ' ')"
    tell_answers
  fi
  [ -z "$keep" ] || [ ! -s "$work/unseen" ] ||
    problem "$(count "$work/unseen") pending jobs were left alone whose SiteFactor Slurm does not show"
  [ $bad = 0 ] && say "read back: nothing of Helios is left on pending jobs"
}

release_jobs() {
  retract
  if ! look; then problem "Slurm does not answer: nothing was read"; return; fi
  if [ -n "$dry" ]; then report_only; return; fi
  if ! { release_marked && release_unseen && release_marked; }; then problem "Slurm stopped answering"; fi
  judge_jobs
}

# What Helios wrote down of nodes into files of lines: ours (node), owns (node weight), list (the site's SuspendExcNodes).
read_undo() {
  : >"$work/list"
  awk -F '\t' -v ours="$work/slept" -v owns="$work/weighed" -v list="$work/list" '
    BEGIN { name = "^[A-Za-z0-9_.-]+$"; printf "" >ours; printf "" >owns }
    NF == 2 && $1 == "asleep" && $2 ~ name { print $2 >ours; next }
    NF == 3 && $1 == "weight" && $2 ~ name && $3 ~ /^[0-9]+$/ { print $2, $3 >owns; next }
    NF == 2 && $1 == "keep_awake" && $2 ~ /^([][A-Za-z0-9_.,:-]+|[(]null[)])$/ && !listed++ { print $2 >list; next }
    { print }' "$undo" >"$work/odd" &&
    sift ours '{ print $1 }' "$work/slept" && sift owns '{ print $1, $2 }' "$work/weighed"
}

# All nodes into nodes (name state weight), and those that Helios put to sleep into a file for each fate.
look_nodes() {
  scontrol -a -o show node >"$work/shown" && scontrol show config >"$work/config" &&
    sift nodes '/^NodeName=/ {
      state = weight = ""
      for (i = 2; i <= NF; i++) {
        if (state == "" && $i ~ /^State=/) state = substr($i, 7)
        if (weight == "" && $i ~ /^Weight=/) weight = substr($i, 8)
      }
      print substr($1, 10), state, weight }' "$work/shown" &&
    sift fates 'FILENAME == ARGV[1] { ours[$1]; next }
      $1 in ours {
        gsub(/[*]/, "", $2); flags = "+" $2 "+"; base = $2; sub(/[+].*/, "", base); fate = "awake"
        if (flags ~ /[+](POWER_DOWN|POWERING_DOWN)[+]/) fate = base == "IDLE" || base == "DOWN" ? "falling" : "busy"
        else if (flags ~ /[+](POWER_UP|POWERING_UP)[+]/) fate = "waking"
        else if (flags !~ /[+]POWERED_DOWN[+]/) fate = "awake"
        else if (base == "DOWN") fate = "down"
        else if (flags ~ /[+](DRAIN|MAINT|MAINTENANCE|FAIL|REBOOT_[A-Z]*)[+]/) fate = "held"
        else fate = "asleep"
        print $1, fate }' "$work/ours" "$work/nodes" &&
    sift heavy 'FILENAME == ARGV[1] { own[$1] = $2; next } $1 in own && $3 != own[$1] { print $1, own[$1] }' \
      "$work/owns" "$work/nodes" &&
    awk '$1 == "SuspendExcNodes" { print $3 }' "$work/config" >"$work/kept" || return 1
  for fate in asleep falling waking busy down held; do
    awk -v fate=$fate '$2 == fate { print $1 }' "$work/fates" >"$work/$fate" || return 1
  done
}

names() { head -n 10 "$1" | awk '{ printf "%s%s", n++ ? " " : "", $1 }'; [ "$(count "$1")" -le 10 ] || echo " ..."; }
list_differs() { [ -s "$work/list" ] && [ "$(cat "$work/list")" != "$(cat "$work/kept")" ]; }

report_nodes() {
  say "would wake $(count "$work/asleep") nodes: $(names "$work/asleep")"
  [ ! -s "$work/falling" ] || say "would wait for $(count "$work/falling") nodes that are falling asleep, and wake them"
  say "would set the weight of $(count "$work/heavy") nodes back"
  ! list_differs || say "would set SuspendExcNodes back to $(cat "$work/list")"
}

restore_weights() {
  [ -s "$work/heavy" ] || return 0
  say "setting the weight of $(count "$work/heavy") nodes back"
  sift values '{ print $2 }' "$work/heavy" || return 1
  while read -r own; do
    awk -v own="$own" '$2 == own { print $1 }' "$work/heavy" >"$work/same"
    write "weight=$own" "$work/same" nodename
  done <"$work/values"
}

restore_list() {
  list_differs || return 0
  own=$(cat "$work/list")
  say "setting SuspendExcNodes back to $own"
  [ "$own" != "(null)" ] || own=
  scontrol update "SuspendExcNodes=$own" >>"$work/answers" 2>&1 </dev/null || true
}

# A node that is falling asleep takes no power_up: Slurm ignores it without a word. So wait until it is asleep.
wake_nodes() {
  waited=0 pass=0 told=
  while [ -s "$work/asleep" ] || [ -s "$work/falling" ]; do
    if [ -s "$work/asleep" ]; then
      pass=$((pass + 1))
      [ $pass -le $PASSES ] || [ -s "$work/falling" ] || break
      say "waking $(count "$work/asleep") nodes: $(names "$work/asleep")"
      write state=power_up "$work/asleep" nodename
    fi
    [ $waited -lt "$limit" ] || break
    now=$(count "$work/falling")
    [ "$now" = 0 ] || [ "$now" = "$told" ] ||
      say "waiting for $now nodes that are falling asleep, $((limit - waited)) s at most: $(names "$work/falling")"
    told=$now
    sleep 1; waited=$((waited + 1))
    look_nodes || return 1
  done
}

judge_nodes() {
  before=$bad bad=0
  if [ -s "$work/asleep" ]; then problem "$(count "$work/asleep") nodes are still asleep: $(names "$work/asleep")"; fi
  if [ -s "$work/falling" ]; then
    problem "$(count "$work/falling") nodes are still falling asleep; run this again: $(names "$work/falling")"
  fi
  if [ -s "$work/busy" ]; then
    problem "$(count "$work/busy") nodes fall asleep when their jobs end; run this again then: $(names "$work/busy")"
  fi
  if [ -s "$work/down" ]; then
    problem "$(count "$work/down") nodes did not wake and are down; look at them: $(names "$work/down")"
  fi
  if [ -s "$work/heavy" ]; then problem "the weight of $(count "$work/heavy") nodes still stands: $(names "$work/heavy")"; fi
  if list_differs; then problem "SuspendExcNodes is $(cat "$work/kept"), not $(cat "$work/list")"; fi
  if [ -s "$work/odd" ]; then problem "$(count "$work/odd") lines of $undo are not understood"; fi
  [ ! -s "$work/held" ] || say "left to their admins, who drained them or have them in hand: $(names "$work/held")"
  [ ! -s "$work/waking" ] || say "$(count "$work/waking") nodes are waking: $(names "$work/waking")"
  if [ $bad != 0 ]; then tell_answers; return; fi
  say "read back: no node is asleep because of Helios, and weights and SuspendExcNodes are the site's own"
  mv -f "$undo" "$undo.released" 2>/dev/null || say "$undo cannot be put aside: remove it, or this is done again next time"
  bad=$before
}

release_nodes() {
  undo=$1/nodes.undo
  if [ ! -e "$undo" ]; then say "no $undo: with the state folder $1, Helios has changed no node"; return; fi
  if ! read_undo; then problem "$undo cannot be read"; return; fi
  if ! look_nodes; then problem "Slurm does not answer: no node was looked at"; return; fi
  if [ -n "$dry" ]; then report_nodes; return; fi
  limit=${limit:-$(awk '$1 == "SuspendTimeout" { print $3 + 60; found = 1 } END { if (!found) print 90 }' "$work/config")}
  : >"$work/answers"
  leave_word "$1/RELEASED.nodes"
  if ! { restore_weights && restore_list && look_nodes && wake_nodes; }; then problem "Slurm stopped answering"; fi
  judge_nodes
}

: >"$work/answers"
power=$state-power # of the unit that acts on nodes, which has an identity and a state folder of its own
[ -n "$nodes" ] && [ -d "$power" ] || power=
pause "$state"
[ -z "$power" ] || pause "$power"
if [ -n "$jobs" ]; then
  [ "$table" = "$state/hook/table" ] || pause "${table%/*}" # the hook looks beside its table and one folder above
  release_jobs
fi
[ -z "$nodes" ] || release_nodes "$state"
[ -z "$power" ] || release_nodes "$power"
exit $bad
