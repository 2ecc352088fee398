#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Say what is missing before anything is installed: Python with venv and headers, a C++ compiler.
# Usage: check_prerequisites.sh PYTHON. Called by the Makefile.
set -u

python=$1
missing=0

complain() {
  echo "missing: $1" >&2
  missing=1
}

if ! command -v "$python" >/dev/null || ! "$python" -c '' 2>/dev/null; then
  complain "$python (Debian, Ubuntu: apt install python3.11; a newer one: make PYTHON=python3.12 ...)"
else
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    complain "Python 3.11 or newer; $python is $version"
  fi
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    complain "the venv module of $python (Debian, Ubuntu: apt install python$version-venv)"
  fi
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  if [[ ! -f "$include/Python.h" ]]; then
    complain "$include/Python.h (Debian, Ubuntu: apt install python$version-dev)"
  fi
fi
if ! command -v "${CXX:-g++}" >/dev/null && ! command -v clang++ >/dev/null; then
  complain "a C++ compiler (Debian, Ubuntu: apt install g++; another one: make CXX=clang++ ...)"
fi
exit "$missing"
