#!/bin/sh
# Takes Helios off a cluster, with Helios, its database and Python broken or gone: a shell, awk and Slurm's own
# commands are enough. What Helios wrote to jobs and did to nodes stands in files that it wrote before it did it; of a
# job it takes back what stands there and bears Helios' mark: a SiteFactor whose last two digits are 37, a TimeMin whose
# minutes end in 7. Run it as root, SlurmUser or a Slurm administrator; for jobs alone an operator will do who can read
# the state folder.
set -u

usage() { cat <<'TEXT'
usage: helios-release.sh [--dry-run] [--jobs-only | --nodes-only] [--hidden] [--by-mark] [--wait SECONDS]
                         [--state FOLDER] [--table FILE]

  1. creates FOLDER/PAUSED, so that Helios and the priority hook change nothing more
  2. removes the priority hook's table
  3. sets SiteFactor and TimeMin of every pending job back to none where FOLDER/jobs.undo says that Helios wrote just
     that value to that job, or FOLDER/hook/published that its hook did
  4. sets weights of nodes and SuspendExcNodes back to the site's own, and wakes every node that Helios put to sleep;
     one that is falling asleep can only be woken when it is asleep, and is waited for
  5. reads it all back

What each job has is read again right before it is written, and left if it is no longer what Helios wrote. A job that
bears the mark and is in no record is left, and named. So is a job of FOLDER/jobs.undo whose SiteFactor Slurm
hides now: it is held, waits for a time or for another job, or has a priority of its own. What Helios did to nodes stands
in FOLDER/nodes.undo; when all of it is taken back, that becomes nodes.undo.released. A node that is drained or under
maintenance meanwhile is left to its admin, as it is. Where there is a FOLDER-power, the state folder of
helios-power.service, that Helios is paused and its nodes.undo taken back too, unless --jobs-only. In folders of another
user all is done as that user, and no link is followed there.

  --dry-run      say what would be done, do nothing
  --jobs-only    leave nodes as they are
  --nodes-only   leave jobs and the hook's table as they are
  --wait SECONDS how long to wait for nodes that are falling asleep; default Slurm's SuspendTimeout and a minute
  --hidden       set the SiteFactor of those jobs to none too that Slurm hides and FOLDER/jobs.undo names; what an admin
                 has written there since is lost: what their priority was and became is printed
  --by-mark      go by the mark alone, for a state folder that is lost: it takes a user's own --time-min=17, and an
                 admin's SiteFactor of 537, for Helios'
  --state FOLDER Helios's control.state_folder; default $HELIOS_CONTROL_STATE_FOLDER, else /var/lib/helios
  --table FILE   the hook's table; default FOLDER/hook/table

Exit status: 0 read back, nothing is left; 1 something of Helios' own is left or could not be read; 2 misused; 3 nothing
of Helios' own is left, and values that bear the mark and are in no record are: a user or an admin wrote them.
To let Helios work again: helios resume, or rm FOLDER/PAUSED; and rm FOLDER-power/PAUSED, if there is one
TEXT
}

dry= hidden= by_mark= table= jobs=yes nodes=yes limit=
state=${HELIOS_CONTROL_STATE_FOLDER:-/var/lib/helios}
while [ $# -gt 0 ]; do
  case $1 in
  -n | --dry-run) dry=yes ;;
  --hidden) hidden=yes ;;
  --by-mark) by_mark=yes ;;
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

BATCH=200  # nodes in one scontrol: far below any limit of a command line
BLOCK=64   # jobs in one scontrol, written in about 40 ms: what an admin writes to them meanwhile is lost
PASSES=4   # jobs come, go and become eligible while this runs

say() { printf 'helios-release: %s\n' "$*"; }
bad=0 strangers=
problem() { say "PROBLEM: $*" >&2; bad=1; }

for program in ${jobs:+squeue sprio} scontrol awk sort mktemp ls id; do
  command -v "$program" >/dev/null || { problem "$program is not on PATH"; exit 1; }
done
# The environment of whoever runs this must not filter or reformat what Slurm prints.
for name in $(env | sed -n 's/^\(S\(QUEUE\|PRIO\|CONTROL\)_[A-Z_]*\|SLURM_CLUSTERS\|SLURM_TIME_FORMAT\|SLURM_BITSTR_LEN\)=.*/\1/p'); do
  unset "$name"
done
LC_ALL=C SLURM_TIME_FORMAT=%s; export LC_ALL SLURM_TIME_FORMAT
umask 022
# The first folder with room for what Slurm prints, as the disk of the first one may be full.
work=
for space in "${TMPDIR:-/tmp}" /dev/shm /run /var/tmp; do
  work=$(mktemp -d "$space/helios-release.XXXXXX" 2>/dev/null) || { work=; continue; }
  ! awk 'BEGIN { for (n = 0; n < 16384; n++) printf "%064d", 0 }' >"$work/room" 2>/dev/null || break
  rm -rf "$work"; work=
done
[ -n "$work" ] || { problem "no folder has room for temporary files; name one: TMPDIR=FOLDER $0"; exit 1; }
rm -f "$work/room"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# NAME PROGRAM FILE...: what awk makes of the files, sorted, once each. No pipe: the failure of any part must show.
sift() {
  name=$1; shift
  awk "$@" >"$work/raw" && sort -u "$work/raw" >"$work/$name"
}

# The owner of a folder as "uid gid".
owner() { ls -ldn "$1/." 2>/dev/null | awk '{ print $3, $4 }'; }

# FOLDER SCRIPT ARGUMENT...: a shell's script in a folder, as the folder's owner where root runs this: whatever links lie
# there lead nowhere that the owner could not go. The script has the arguments from $1 on, and is in the folder.
within() {
  folder=$1 script=$2; shift 2
  set -- "$script" sh "$@"
  who=$(owner "$folder")
  [ -n "$who" ] || return 1
  if [ "$(id -u)" != 0 ] || [ "${who% *}" = 0 ]; then (cd "$folder/." && exec sh -c "$@")
  elif command -v setpriv >/dev/null; then
    (cd "$folder/." && exec setpriv --reuid "${who% *}" --regid "${who#* }" --clear-groups sh -c "$@")
  else
    problem "$folder is another user's, and setpriv (util-linux) is not on PATH: nothing is done there"; return 1
  fi
}

# FOLDER FILE: a file's text, onto the standard output; nothing where there is none. A link, or what belongs to neither
# the folder's owner nor root, is not read.
text_of() {
  [ -e "$1/$2" ] || [ -h "$1/$2" ] || return 0
  if ! is_plain "$1" "$2"; then problem "$1/$2 is a link, or somebody else's: it is not read"; return 1; fi
  within "$1" '[ ! -h "$1" ] && [ -f "$1" ] && cat "./$1"' "$2"
}

# FOLDER FILE: whether a file, and the folder between, is no link, and is the folder's owner's or root's.
is_plain() {
  case $2 in */*) [ ! -h "$1/${2%/*}" ] || return 1 ;; esac
  [ ! -h "$1/$2" ] && [ -f "$1/$2" ] || return 1
  whose=$(ls -ln "$1/$2" | awk '{ print $3 }') folders=$(owner "$1")
  [ "$whose" = 0 ] || [ "$whose" = "${folders% *}" ]
}

# What Helios wrote to jobs, into lines of words; then pending jobs. From both, what is to be done into files of lines:
# - ours: SiteFactor or TimeMin, and the job as scontrol is to be told of it, what stands
# - hidden: the job, what Helios had written, the priority
# - odd: what bears the mark and is in no record
# Of an array whose tasks have one record, a line of squeue --array for each has the record's number: tasks that somebody
# split off have their own. No job's name is asked for, so that none can look like a line.
# sprio shows a job whose priority was set directly with all factors 0.
# [FOLDER IDS]: of some jobs alone, into files there. One id is named twice: squeue fails where it is alone and gone.
look() {
  into=${1:-$work} ids=${2:-}
  squeue -h -a --array -t PD ${ids:+-j "$ids,$ids"} -O 'JobID:|,ArrayJobID:|,ArrayTaskID:|,SubmitTime:|,UserName:|,Partition:|,TimeLimit:|,MinTime:|,PriorityLong:|,RestartCnt:|' \
    >"$into/squeue" && sprio -h ${ids:+-j "$ids"} -o '%i|%Y|%S|%A|%B|%F|%J|%P|%Q|%N|%T' >"$into/sprio" &&
    awk -F '|' -v by_mark="$by_mark" -v soft="$soft" '
      function minutes(text,   n, part, days) { # [days-]hours:minutes:seconds or minutes:seconds
        days = 0
        if (split(text, part, "-") == 2) { days = part[1]; text = part[2] }
        n = split(text, part, ":")
        if (n == 2) return days * 1440 + part[1]
        return n == 3 ? days * 1440 + part[1] * 60 + part[2] : 0
      }
      function published(word, user, where, limit, value, at_s,   i, key) {
        for (i = 0; i < 2; i++) {
          key = word " " (i ? "*" : user) " " where " " limit " " value
          if (key in since && at_s >= since[key] - 300 && (until[key] == "-" || at_s <= until[key] + 300)) return 1
        }
        return 0
      }
      # Whether it is proved that Helios wrote a value: to this job, to its array, or its hook.
      function proved(word, value, limit) {
        if (by_mark) return 1
        return ((word, when($1), $1, value) in wrote) || ((word, when($2), $2, value) in wrote) || published(word, $5, $6, limit, value, $4)
      }
      # A requeue is a new submission.
      function when(id) { return $10 + 0 > 0 && !(("any", $4, id) in known) ? "before" : $4 }
      FILENAME == ARGV[1] {
        split($0, part, "\t"); known["any", part[3], part[2]]
        for (i = 0; i < 2; i++) {
          at = i ? "before" : part[3]
          wrote[part[1], at, part[2], part[4]]; last[part[1], at, part[2]] = part[4]
        }
        next
      }
      FILENAME == ARGV[2] { split($0, part, " "); key = part[3] " " part[4] " " part[5] " " part[6] " " part[7]
                            since[key] = part[1]; until[key] = part[2]; next }
      { for (i = 1; i <= NF; i++) gsub(/^ +| +$/, "", $i) }
      FILENAME == ARGV[3] {
        if ($1 !~ /^[0-9]+$/) next
        zero = 1; for (i = 3; i <= NF; i++) if ($i + 0 != 0) zero = 0
        if (!(zero && $2 + 0 > 10)) factor[$1] = $3
        next
      }
      NF < 10 || $1 !~ /^[0-9]+$/ || $2 !~ /^[0-9]+$/ || $4 !~ /^[0-9]+$/ { print "strange", $1; next }
      {
        target = $1 == $2 && $3 ~ /^[0-9]+$/ ? $1 "_" $3 : $1
        if ($1 in factor) {
          size = factor[$1] < 0 ? -factor[$1] : factor[$1]
          if (size % 100 == 37) print (proved("site_factor", factor[$1], "*") ? "SiteFactor" : "odd"), target, "SiteFactor=" factor[$1]
        } else {
          had = (("site_factor", when($1), $1) in last) ? last["site_factor", when($1), $1] : last["site_factor", when($2), $2]
          if (had + 0) print "hidden", target, had, $9
        }
        least = minutes($8)
        if (least % 10 == 7) {
          if (proved("time_min", least, $7 == "UNLIMITED" ? "-" : minutes($7))) print "TimeMin", target, "TimeMin=" least
          else if (soft) print "odd", target, "TimeMin=" least
        }
      }' "$work/wrote" "$work/published" "$into/sprio" "$into/squeue" >"$into/found" || return 1
  for kind in SiteFactor TimeMin hidden odd strange; do
    awk -v kind=$kind '$1 == kind { print $2, $3, $4 }' "$into/found" | sort -u >"$into/$kind" || return 1
  done
}

# FIELD KIND FILE: sets a field of jobs to none, block by block. Slurm has no compare-and-set, so the jobs of a block are
# looked at again right before it is written, and only those are that are still of the kind: an admin's change stands.
clear_field() {
  mkdir -p "$work/again" && sort -t _ -k 1,1n -k 2,2n "$3" >"$work/queued" || return 1
  first=1 last=$(count "$work/queued")
  while [ $first -le "$last" ]; do
    awk -v first=$first -v most=$BLOCK 'NR >= first && NR < first + most' "$work/queued" >"$work/block" &&
      named=$(awk '{ sub(/_.*/, "", $1); if (!had[$1]++) list = list (list ? "," : "") $1 } END { print list }' "$work/block") &&
      look "$work/again" "$named" &&
      awk 'FILENAME == ARGV[1] { still[$1]; next } $1 in still' "$work/again/$2" "$work/block" >"$work/still" || return 1
    write "$1=0" "$work/still"
    first=$((first + BLOCK))
  done
}

# The records of what Helios wrote to jobs, and whether the site has soft limits: without them no TimeMin is Helios'.
read_records() {
  : >"$work/wrote"; : >"$work/published"; soft=
  [ ! -d "$state" ] || [ -x "$state" ] || problem "$state/jobs.undo was not read: this user may not look into $state"
  text_of "$state" jobs.undo >"$work/raw_wrote" || { : >"$work/raw_wrote"; problem "$state/jobs.undo was not read"; }
  text_of "$state" hook/published >"$work/raw_published" ||
    { : >"$work/raw_published"; problem "$state/hook/published was not read"; }
  awk '/^(site_factor|time_min)\t[0-9]+\t[0-9]+\t-?[0-9]+$/' "$work/raw_wrote" >"$work/wrote" &&
    awk '/^[0-9]+ ([0-9]+|-) (site_factor|time_min) [^ ]+ [^ ]+ ([0-9]+|[*]) -?[0-9]+$/' "$work/raw_published" \
      >"$work/published" && scontrol show config >"$work/config" || return 1
  ! grep_soft || soft=yes
}
grep_soft() { awk '/^SchedulerParameters/ && /time_min_as_soft_limit/ { found = 1 } END { exit !found }' "$work/config"; }

count() { awk 'END { print NR }' "$1"; }

# FIELD=VALUE FILE [KIND]: a job that has started or ended meanwhile is refused and needs nothing; the look afterwards
# decides. Of an array the tasks are named that have one record (M_[1-4,6]), each array in a call of its own.
write() {
  sort -t _ -k 1,1n -k 2,2n "$2" | awk -v most=$BATCH -v jobs="${3:-yes}" '
    function end_span() { if (first != "") list = list (list ? "," : "") (first == last ? first : first "-" last); first = "" }
    function end_array() { end_span(); if (list) print master "_[" list "]"; list = "" }
    jobs == "yes" && split($1, part, "_") == 2 {
      if (part[1] != master) { end_array(); master = part[1] }
      if (first != "" && part[2] == last + 1) { last = part[2]; next }
      end_span(); first = last = part[2]; next
    }
    { line = line (n++ ? "," : "") $1; if (n == most) { print line; n = 0; line = "" } }
    END { end_array(); if (n) print line }' >"$work/batches"
  while read -r ids; do
    scontrol update "${3:-jobid}=$ids" "$1" >>"$work/answers" 2>&1 </dev/null ||
      printf '%s\n' "$ids" >>"$work/refused"
  done <"$work/batches"
}

# A pause file must not be created where a link leads: Helios takes a link for a pause, the hook does not.
pause() {
  if [ -h "$1/PAUSED" ]; then problem "$1/PAUSED is a link: it is not followed; look who made it"
  elif [ -e "$1/PAUSED" ]; then say "$1/PAUSED is there"
  elif [ -n "$dry" ]; then say "would create $1/PAUSED"
  elif { [ -d "$1" ] || mkdir -p "$1"; } && within "$1" 'set -C; echo "$1" >PAUSED' \
    "helios-release.sh, $(date -u '+%Y-%m-%d %H:%M:%S') UTC" 2>/dev/null; then
    say "created $1/PAUSED"
  elif [ -e "$1/PAUSED" ]; then say "created $1/PAUSED, which is empty: the disk is full"
  else problem "$1/PAUSED cannot be created: stop Helios yourself"
  fi
}

retract() {
  if [ -h "${table%/*}" ]; then problem "${table%/*} is a link: the hook's table behind it is left; remove it yourself"
  elif [ ! -e "$table" ] && [ ! -h "$table" ]; then say "no table at $table"
  elif [ -n "$dry" ]; then say "would remove $table"
  elif within "${table%/*}" 'rm -f "./$1"' "${table##*/}"; then say "removed $table"
  else problem "$table cannot be removed: the hook goes by it until it expires"
  fi
}

# Only when asked to: of a job that Helios had set and Slurm hides now nobody can tell whether an admin has set it since.
release_hidden() {
  [ -n "$hidden" ] && [ -s "$work/hidden" ] || return 0
  cp "$work/hidden" "$work/before" || return 1
  say "setting the SiteFactor of $(count "$work/before") pending jobs to none that Slurm hides and Helios had set"
  : >"$work/refused"
  clear_field SiteFactor hidden "$work/before" && look || return 1
  if [ -s "$work/refused" ]; then problem "jobs whose SiteFactor Slurm hides were refused: $(names "$work/refused")"; return; fi
  # Nothing can be read back but the priority.
  awk 'FILENAME == ARGV[1] { had[$1] = $2; was[$1] = $3; next }
       $1 in was { printf "helios-release: job %s: priority %s, was %s; Helios had written SiteFactor %s\n", $1, $3, was[$1], had[$1] }' \
    "$work/before" "$work/hidden"
  remember_gone "$work/before" SiteFactor
  : >"$work/hidden"
}

report_only() {
  say "would set SiteFactor of $(count "$work/SiteFactor") pending jobs to none: $(names "$work/SiteFactor")"
  say "would set TimeMin of $(count "$work/TimeMin") pending jobs to none: $(names "$work/TimeMin")"
  say "of $(count "$work/hidden") pending jobs that Helios had set Slurm hides the SiteFactor;" \
    "would $([ -n "$hidden" ] || echo 'not ')set it to none: $(names "$work/hidden")"
  say "$(count "$work/odd") values bear Helios' mark and are in no record; would leave them: $(names "$work/odd")"
}

# For Helios' next turn: what it then finds gone was taken back by nobody who wants that job or node left alone. Not with
# ":", after whose failed redirection a shell ends.
leave_word() {
  if [ -h "$1/$2" ]; then problem "$1/$2 is a link: it is not followed"; return; fi
  [ -e "$1/$2" ] ||
    within "$1" 'set -C; : >"$1"' "$2" 2>/dev/null || say "$1/$2 cannot be created"
}

# FILE FIELD: jobs of which a value was taken back, into Helios' own record, so that nobody takes it for standing.
remember_gone() {
  [ -e "$state/jobs.undo" ] && is_plain "$state" jobs.undo || return 0
  word=site_factor; [ "$2" = SiteFactor ] || word=time_min
  awk -F '|' -v word=$word 'FILENAME == ARGV[1] { split($0, part, " "); gone[part[1]]; next }
    { for (i = 1; i <= 4; i++) gsub(/ /, "", $i)
      target = $1 == $2 && $3 ~ /^[0-9]+$/ ? $1 "_" $3 : $1
      if (target in gone) printf "%s\t%s\t%s\t0\n", word, $1, $4 }' "$1" "$work/squeue" | sort -u >"$work/gone"
  within "$state" 'cat >>"./$1"' jobs.undo <"$work/gone" 2>/dev/null || say "$state/jobs.undo cannot be written"
}

release_marked() {
  leave_word "$state" RELEASED
  pass=0
  while [ -s "$work/SiteFactor" ] || [ -s "$work/TimeMin" ]; do
    pass=$((pass + 1)); [ $pass -le $PASSES ] || break
    for field in SiteFactor TimeMin; do
      [ -s "$work/$field" ] || continue
      say "$field of $(count "$work/$field") pending jobs: setting to none: $(names "$work/$field")"
      cp "$work/$field" "$work/was_$field" || return 1
      clear_field $field $field "$work/was_$field" || return 1
    done
    look || return 1
    for field in SiteFactor TimeMin; do
      [ ! -s "$work/was_$field" ] || [ -s "$work/$field" ] || remember_gone "$work/was_$field" $field
      : >"$work/was_$field"
    done
  done
}

tell_answers() {
  [ ! -s "$work/answers" ] || { say "Slurm's answers:"; sort "$work/answers" | uniq -c | sort -rn | head -n 5; } >&2
}

judge_jobs() {
  if [ -s "$work/SiteFactor" ] || [ -s "$work/TimeMin" ]; then
    problem "SiteFactor of $(count "$work/SiteFactor") and TimeMin of $(count "$work/TimeMin") jobs still stand:" \
      "$(awk '{ print $1 }' "$work/SiteFactor" "$work/TimeMin" | sort -u | head -n 10 | tr '\n' ' ')"
    tell_answers
  fi
  if [ -s "$work/hidden" ]; then
    problem "of $(count "$work/hidden") jobs that Helios had set Slurm hides the SiteFactor, so they are left:" \
      "$(awk '{ printf "%s%s (SiteFactor %s)", n++ ? ", " : "", $1, $2 } n == 10 { exit }' "$work/hidden"). A paused" \
      "Helios takes it back once it can be read; at once: scontrol update jobid=N SiteFactor=0, or for all: $0 --hidden"
  fi
  if [ -s "$work/odd" ]; then
    strangers=yes
    say "LEFT: $(count "$work/odd") values bear Helios' mark and are in no record:" \
      "$(awk '{ printf "%s%s (%s)", n++ ? ", " : "", $1, $2 } n == 10 { exit }' "$work/odd"); not touched. If they are" \
      "Helios' own, its state folder lost: $0 --by-mark" >&2
  fi
  [ ! -s "$work/strange" ] || problem "$(count "$work/strange") lines of squeue are not understood"
  # squeue was read first: what only sprio names was submitted in between, or cut away.
  awk -F '|' 'FILENAME == ARGV[1] { listed[$1]; listed[$2]; next }
    { gsub(/ /, "", $1) } $1 ~ /^[0-9]+$/ && !($1 in listed) { print $1 }' "$work/squeue" "$work/sprio" >"$work/unlisted"
  if [ "$(count "$work/unlisted")" -ge 2 ] && [ $((4 * $(count "$work/unlisted"))) -ge "$(count "$work/sprio")" ]; then
    problem "sprio names $(count "$work/unlisted") pending jobs that squeue does not list: its answer was cut. Run this again"
  fi
  [ $bad = 0 ] && say "read back: nothing that Helios is known to have set is left on pending jobs"
}

release_jobs() {
  retract
  if ! read_records; then problem "Slurm does not answer: nothing was read"; return; fi
  if ! look; then problem "Slurm does not answer: nothing was read"; return; fi
  if [ -n "$dry" ]; then report_only; return; fi
  if ! { release_marked && release_hidden && release_marked; }; then problem "Slurm stopped answering"; fi
  judge_jobs
}

# What Helios wrote down of nodes into files of lines: ours (node), owns (node weight), list (the site's SuspendExcNodes).
read_undo() {
  : >"$work/list"
  text_of "${undo%/*}" nodes.undo >"$work/undo" || return 1
  awk -F '\t' -v ours="$work/slept" -v owns="$work/weighed" -v list="$work/list" '
    BEGIN { name = "^[A-Za-z0-9_.-]+$"; printf "" >ours; printf "" >owns }
    NF == 2 && $1 == "asleep" && $2 ~ name { print $2 >ours; next }
    NF == 3 && $1 == "weight" && $2 ~ name && $3 ~ /^[0-9]+$/ { print $2, $3 >owns; next }
    NF == 2 && $1 == "keep_awake" && $2 ~ /^([][A-Za-z0-9_.,:-]+|[(]null[)])$/ && !listed++ { print $2 >list; next }
    { print }' "$work/undo" >"$work/odd" &&
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
  within "${undo%/*}" 'mv -f ./nodes.undo ./nodes.undo.released' 2>/dev/null || say "$undo cannot be put aside: remove it, or this is done again next time"
  bad=$before
}

release_nodes() {
  undo=$1/nodes.undo
  if [ ! -e "$undo" ] && [ ! -h "$undo" ]; then say "no $undo: with the state folder $1, Helios has changed no node"; return; fi
  if ! read_undo; then problem "$undo cannot be read"; return; fi
  if ! look_nodes; then problem "Slurm does not answer: no node was looked at"; return; fi
  if [ -n "$dry" ]; then report_nodes; return; fi
  limit=${limit:-$(awk '$1 == "SuspendTimeout" { print $3 + 60; found = 1 } END { if (!found) print 90 }' "$work/config")}
  : >"$work/answers"
  leave_word "$1" RELEASED.nodes
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
[ $bad != 0 ] || [ -z "$strangers" ] || exit 3
exit $bad
