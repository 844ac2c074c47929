# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# For ./dev: finds out what this machine lacks, reports it, and installs it. Debian packages go to
# the system; Python packages go to build/venv and never to the system's Python.

readonly venv=build/venv
readonly torch_minimum=2.11

# usable_jobs [ROOT]: prints how many processes may compile at a time, at 2 GiB each. nproc ignores
# a container's limits (the first two files) but would obey OpenMP's variables, so these are
# removed. Tests set ROOT, which is put before every path that is read.
usable_jobs() {
  awk -v root="${1:-}" -v jobs="$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)" '
    function heed(most) { if (int(most) < jobs) jobs = int(most) }
    BEGIN {
      if ((getline < (root "/sys/fs/cgroup/cpu.max")) > 0 && $1 != "max") heed($1 / $2 + 0.99)
      if ((getline < (root "/sys/fs/cgroup/memory.max")) > 0 && $1 != "max") heed($1 / 2 ^ 31)
      while ((getline < (root "/proc/meminfo")) > 0) if ($1 == "MemAvailable:") heed($2 / 2 ^ 21)
      print (jobs > 1 ? jobs : 1)
    }'
}

# wanted_packages PURPOSE...: prints names from scripts/packages.txt.
wanted_packages() {
  local purpose
  for purpose in "$@"; do
    sed -n "s/^$purpose //p" scripts/packages.txt
  done
}

missing_packages() {
  local name
  for name in $(wanted_packages "$@"); do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) == installed ]] ||
      printf '%s\n' "$name"
  done
}

# clang_hint PACKAGE...: prints advice for machines that cannot install one of these packages.
clang_hint() {
  [[ " $* " != *'-14 '* ]] ||
    say "./dev fmt, tidy, fuzz and check need clang 14, as Debian 12 and Ubuntu 24.04 have it."
}

apt_install() {
  # A machine that has just started installs its updates by itself, and locks dpkg meanwhile.
  local apt_get=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  ((EUID == 0)) || apt_get=(sudo "${apt_get[@]}")
  local install=("${apt_get[@]}" install --yes --no-install-recommends "$@")
  "${install[@]}" && return
  # The package lists may be missing (a fresh container) or older than the archive. A machine that
  # has just started fetches the lists itself, and apt-get does not wait for that lock.
  local attempt
  for attempt in {1..12}; do
    "${apt_get[@]}" update && break
    ((attempt == 12)) || sleep 5
  done
  "${install[@]}" && return
  clang_hint "$@"
  return 1
}

# ensure_packages PURPOSE...
ensure_packages() {
  [[ ${STRETTO_PACKAGES:-} != OFF ]] || return 0
  if ! command -v dpkg-query > /dev/null; then
    local wanted
    wanted=$(wanted_packages "$@" | tr '\n' ' ')
    fail "this is not Debian or Ubuntu, so ./dev cannot install packages. Install the equivalents" \
      "of: $wanted; then run with STRETTO_PACKAGES=OFF. $(clang_hint "$wanted")"
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]} > 0)) || return 0
  say "  Debian packages to install: ${missing[*]}"
  if ((EUID != 0)); then
    command -v sudo > /dev/null ||
      fail "neither root nor sudo: ask an administrator to run: apt-get install ${missing[*]}"
    # Asks for the password now, while nothing else writes to the terminal. sudo -v alone asks even
    # users whom some rules exempt, such as the first user of a cloud image.
    sudo -n true 2> /dev/null || sudo -v ||
      fail "sudo was refused; as root, run: apt-get install ${missing[*]}"
  fi
  phase "installing packages" packages apt_install "${missing[@]}"
}

# Prints the folder of TorchConfig.cmake of this Python's torch, if that torch is new enough.
torch_dir_of() {
  "$1" - "$torch_minimum" 2>/dev/null <<'PYTHON'
import importlib.metadata, importlib.util, pathlib, re, sys

numbers = lambda text: [int(part) for part in re.findall(r"\d+", text)[:2]]
found = importlib.util.find_spec("torch")
if not found or numbers(importlib.metadata.version("torch")) < numbers(sys.argv[1]):
    sys.exit(1)
folder = pathlib.Path(found.origin).parent / "share/cmake/Torch"
if not (folder / "TorchConfig.cmake").exists():
    sys.exit(1)
print(folder)
PYTHON
}

requirements() { grep -v '^#' scripts/requirements.txt; }

# pip_install creates virtual environments with ensurepip, for which Debian has a separate package.
ensure_ensurepip() { python3 -c 'import ensurepip' 2> /dev/null || ensure_packages venv; }

# has_pip FOLDER: whether the virtual environment there is complete.
has_pip() { "$1/bin/python" -m pip --version &> /dev/null; }

# pip_install FOLDER REQUIREMENT...: installs into the virtual environment in FOLDER. Creates it if
# it is missing or incomplete.
pip_install() {
  local folder=$1 pip_args
  has_pip "$folder" || python3 -m venv --clear "$folder" || return
  read -r -a pip_args <<< "${STRETTO_PIP_ARGS:-}"
  "$folder/bin/python" -m pip install --disable-pip-version-check "${pip_args[@]}" "${@:2}"
}

# Installs the requirements, only if they have changed.
ensure_venv() {
  local stamp=$venv/stretto-requirements.sha256 wanted
  wanted=$(requirements | sha256sum)
  if [[ -x $venv/bin/python && -f $stamp && $(< "$stamp") == "$wanted" ]]; then return; fi
  has_pip "$venv" || ensure_ensurepip
  say "  Python packages for $venv: $(requirements | tr '\n' ' ')"
  if [[ -z ${STRETTO_PIP_ARGS:-} ]]; then
    say "  (a CPU build of torch is enough; STRETTO_PIP_ARGS='--extra-index-url URL' finds one)"
  fi
  # shellcheck disable=SC2046  # Each requirement is to be a separate word.
  phase "installing Python packages" pip pip_install "$venv" $(requirements)
  printf '%s\n' "$wanted" > "$stamp"
}

# Sets torch_dir: empty with --without-torch, else the folder of TorchConfig.cmake. If torch belongs
# to a Python, STRETTO_TORCH_PYTHON tells the tests that use PyTorch which Python that is.
ensure_torch() {
  torch_dir=
  [[ $use_torch == ON ]] || return 0
  if [[ -n ${Torch_DIR:-} ]]; then
    [[ -f $Torch_DIR/TorchConfig.cmake ]] || fail "Torch_DIR=$Torch_DIR has no TorchConfig.cmake"
    torch_dir=$Torch_DIR
  elif torch_dir=$(torch_dir_of python3); then
    export STRETTO_TORCH_PYTHON=python3
  else
    ensure_venv
    torch_dir=$(torch_dir_of "$venv/bin/python") ||
      fail "$venv has no libtorch; delete it and try again"
    export STRETTO_TORCH_PYTHON=$PWD/$venv/bin/python
  fi
  ensure_python_headers
}

# Installs Python's headers for the backend of torch.distributed. Without them only the backend is
# not built.
ensure_python_headers() {
  [[ -n ${STRETTO_TORCH_PYTHON:-} ]] || return 0
  "$STRETTO_TORCH_PYTHON" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    ensure_packages torch
}

# The packages, all of one version, that nvcc needs to compile for devices and to link with the CUDA
# runtime. The PyPI packages of CUDA 12 lack nvcc itself.
readonly cuda_requirements=(nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-crt==13.0.*
  nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.*)

# Prints the path of STRETTO_NVCC, or of the first nvcc that knows C++20.
find_nvcc() {
  local candidate
  for candidate in "${STRETTO_NVCC:-}" "$(command -v nvcc || true)" /usr/local/bin/nvcc \
    /usr/local/cuda/bin/nvcc "$PWD/$venv"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc; do
    [[ -n $candidate && -x $candidate ]] || continue
    if [[ $candidate == "${STRETTO_NVCC:-}" ]] ||
      "$candidate" -std=c++20 --dryrun -c empty.cu &> /dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
}

# ensure_cuda [install]: sets cuda_args to the CMake arguments that compile code for GPUs. Uses an
# existing nvcc (STRETTO_NVCC, PATH, /usr/local, build/venv), or, with `install`, installs one in
# build/venv. Without an nvcc, or with one that lacks headers or libraries or does not know C++20,
# CMake leaves out the code for GPUs.
ensure_cuda() {
  local nvcc
  nvcc=$(find_nvcc)
  if [[ -z $nvcc && ${1:-} == install ]]; then
    has_pip "$venv" || ensure_ensurepip
    say "  Python packages for $venv: ${cuda_requirements[*]}"
    phase "installing nvcc" cuda pip_install "$venv" "${cuda_requirements[@]}"
    nvcc=$(find_nvcc)
    [[ -n $nvcc ]] || fail "the packages of CUDA have no nvcc for this machine"
  fi
  # Set explicitly, because CMake remembers another value of an earlier call.
  cuda_args=(-DSTRETTO_CUDA=AUTO)
  # shellcheck disable=SC2034  # ./dev reads it.
  [[ -z $nvcc ]] || cuda_args+=("-DSTRETTO_NVCC=$nvcc")
}
