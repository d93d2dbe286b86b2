#!/bin/sh
# Builds a Debian package and an rpm from a wheel, each where its tool is at hand: the wheel, the wheels of all that it
# needs, and the steps that make an environment of them in /opt/helios. They are for the Python and the architecture
# that they are built with.
set -eu
usage='usage: build.sh WHEEL FOLDER     writes FOLDER/helios-slurm_VERSION_ARCHITECTURE.deb and .rpm'
if [ $# != 2 ] || [ ! -f "$1" ]; then echo "$usage" >&2; exit 2; fi
wheel=$1 folder=$2 python=${PYTHON:-python3} here=$(cd "$(dirname "$0")" && pwd)

version=$(basename "$wheel" | cut -d- -f2)
release=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
next=$("$python" -c 'import sys; print("%d.%d" % (sys.version_info[0], sys.version_info[1] + 1))')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root wheels=$work/root/usr/libexec/helios-slurm docs=$work/root/usr/share/doc/helios-slurm
install -d "$folder" "$wheels" "$docs"
folder=$(cd "$folder" && pwd)
"$python" -m pip download --quiet --only-binary :all: --dest "$wheels" "${wheel}[postgres,web]"
chmod 0644 "$wheels"/*
install -m 0755 "$here/install.sh" "$here/remove.sh" "$wheels"
install -m 0644 "$here/../../LICENSE" "$docs/copyright"
install -m 0644 "$here/../../docs/install.md" "$here/../../docs/operate.md" "$docs"

if command -v rpmbuild >/dev/null; then
  rpmbuild --quiet -bb --define "_topdir $work/rpm" --define "_rpmdir $folder" \
    --define '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' --define "helios_version $version" \
    --define "helios_python $release" --define "helios_root $root" "$here/../rpm/helios.spec"
else
  echo "rpmbuild is not here: no rpm" >&2
fi
command -v dpkg-deb >/dev/null || { echo "dpkg-deb is not here: no Debian package" >&2; exit 0; }
architecture=$(dpkg --print-architecture)
install -d "$root/DEBIAN"
for step in postinst prerm postrm; do install -m 0755 "$here/../debian/$step" "$root/DEBIAN"; done
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
 /usr/share/doc/helios-slurm/install.md.
TEXT
# Wheels are compressed already.
dpkg-deb --root-owner-group -Znone --build "$root" "$folder/helios-slurm_${version}_$architecture.deb"
