#!/bin/sh
# Builds a Debian package from a wheel: the wheel, the wheels of all that it needs, and the steps that make an
# environment of them in /opt/helios. It is for the release of Debian and the Python that it is built with.
set -eu
usage='usage: build.sh WHEEL FOLDER     writes FOLDER/helios-slurm_VERSION_ARCHITECTURE.deb'
[ $# = 2 ] && [ -f "$1" ] || { echo "$usage" >&2; exit 2; }
command -v dpkg-deb >/dev/null || { echo "dpkg-deb is not here: a Debian package is built on Debian or Ubuntu" >&2; exit 3; }
wheel=$1 folder=$2 python=${PYTHON:-python3} here=$(dirname "$0")

version=$(basename "$wheel" | cut -d- -f2)
architecture=$(dpkg --print-architecture)
release=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
next=$("$python" -c 'import sys; print("%d.%d" % (sys.version_info[0], sys.version_info[1] + 1))')
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 0755 "$root"
install -d "$root/DEBIAN" "$root/usr/lib/helios-slurm" "$root/usr/share/doc/helios-slurm"
"$python" -m pip download --quiet --only-binary :all: --dest "$root/usr/lib/helios-slurm" "$wheel[postgres]"
chmod 0644 "$root"/usr/lib/helios-slurm/*
install -m 0644 "$here/../../LICENSE" "$root/usr/share/doc/helios-slurm/copyright"
install -m 0644 "$here/../../docs/operate.md" "$root/usr/share/doc/helios-slurm/"
for step in postinst prerm postrm; do install -m 0755 "$here/$step" "$root/DEBIAN/$step"; done
cat >"$root/DEBIAN/control" <<TEXT
Package: helios-slurm
Version: $version
Architecture: $architecture
Maintainer: The Helios developers <helios@localhost>
Installed-Size: $(du -sk "$root" | cut -f1)
Depends: python3 (>= $release), python3 (<< $next), python3-venv, libgomp1
Section: admin
Priority: optional
Description: learns from a Slurm GPU cluster's history and acts on it
 Orders the queue, puts idle nodes to sleep, and says what a history shows.
 The environment is made in /opt/helios when the package is installed;
 no network is needed. Nothing is started: see
 /usr/share/doc/helios-slurm/operate.md.
TEXT
mkdir -p "$folder"
# Wheels are compressed already.
dpkg-deb --root-owner-group -Znone --build "$root" "$folder/helios-slurm_${version}_$architecture.deb"
