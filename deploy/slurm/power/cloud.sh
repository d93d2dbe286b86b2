#!/bin/sh
# Back end, to be filled in: machines that programs of your site start and stop.
# Settings: start=PROGRAM  stop=PROGRAM  status=PROGRAM (prints on, off, or changing); each is called with the node's name
#
# Or write the commands here, in switch_on, switch_off and state. Credentials are the tool's own business: a role of the
# controller's machine, or the tool's file of credentials - not this file, and no argument. For example:
#
#   AWS        aws ec2 start-instances --instance-ids "$(id_of "$node")"
#              aws ec2 stop-instances --instance-ids "$(id_of "$node")"
#              aws ec2 describe-instances --instance-ids "$(id_of "$node")" \
#                --query 'Reservations[0].Instances[0].State.Name' --output text     # running, stopped; else: changing
#   Google     gcloud compute instances start "$node" --zone="$POWER_ZONE" --quiet
#              gcloud compute instances stop "$node" --zone="$POWER_ZONE" --quiet
#              gcloud compute instances describe "$node" --zone="$POWER_ZONE" --format='value(status)'   # RUNNING, TERMINATED
#   OpenStack  openstack server start "$node"
#              openstack server stop "$node"
#              openstack server show "$node" -f value -c status                       # ACTIVE, SHUTOFF
#
# A machine whose address changes with each start must tell Slurm: scontrol update nodename=NODE nodeaddr=ADDRESS
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname -- "$0")/backend.sh"

node=${2:-}

ready() {
  need START STOP STATUS
  for program in "$POWER_START" "$POWER_STOP" "$POWER_STATUS"; do
    [ -x "$program" ] || refuse "$program is not a program"
  done
}
state() { "$POWER_STATUS" "$node" </dev/null; }
switch_on() { "$POWER_START" "$node" </dev/null; }
switch_off() { "$POWER_STOP" "$node" </dev/null; }
force_off() { :; }

run "$@"
