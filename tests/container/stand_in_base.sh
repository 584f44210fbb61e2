#!/bin/bash
# Makes a base image that stands in for NVIDIA's where its registry cannot be reached: Debian with Python, a C++
# compiler, torch for the CPU, and what was installed written into /etc/pip/constraint.txt, as NVIDIA's has it.
#
#   stand_in_base.sh FOLDER IMAGE      as root, with debootstrap and buildah; FOLDER is for working in
set -euo pipefail
folder=$1 image=$2
here=$(cd "$(dirname "$0")/../.." && pwd)
root=$folder/rootfs

debootstrap --variant=minbase \
    --include=python3,python3-dev,python3-pip,python3-venv,g++,ca-certificates bookworm "$root"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"

# older than the newest, so that something would be replaced were it not for the constraints
held=(numpy==2.2.6 packaging==25.0 pydantic==2.11.10)
torch=$(grep --only-matching '^torch==.*' "$here/constraints.txt")
python3 -m pip download --quiet --dest "$root/wheels" --python-version 3.11 --only-binary=:all: "$torch" "${held[@]}"
chroot "$root" python3 -m pip install --quiet --break-system-packages --root-user-action=ignore \
    --no-index --find-links /wheels torch "${held[@]}"
rm -r "$root/wheels"
mkdir "$root/etc/pip"
chroot "$root" python3 -m pip freeze > "$root/etc/pip/constraint.txt"

tar -C "$root" -cf "$folder/base.tar" .
rm -r "$root"
container=$(buildah from scratch)
buildah add --quiet "$container" "$folder/base.tar" /
buildah config --env PIP_CONSTRAINT=/etc/pip/constraint.txt --env PIP_BREAK_SYSTEM_PACKAGES=1 \
    --env PIP_CERT=/etc/ssl/certs/ca-certificates.crt "$container"
buildah commit --quiet --rm "$container" "$image"
rm "$folder/base.tar"
