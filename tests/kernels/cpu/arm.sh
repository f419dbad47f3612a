#!/bin/sh
# The ARM64 kernels, cross-compiled and run by qemu-user against the portable ones (check_isas.cpp). Speed says nothing
# here. Debian: g++-aarch64-linux-gnu qemu-user
set -eu
here=$(dirname "$0")
kernels=$here/../../../src/fulgur/kernels/cpu
out=${OUT:-build/arm}
flags="-std=c++20 -O2 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -DFULGUR_ARM"
mkdir -p "$out"
compile() {
  aarch64-linux-gnu-g++ $flags ${2:-} -I"$kernels" -c "$1" -o "$out/$(basename "$1" .cpp).o"
}
rm -f "$out"/*.o
for file in "$kernels"/*.cpp; do
  case $(basename "$file") in
    module.cpp | operations.cpp) ;; # what Python calls
    isa_portable.cpp) compile "$file" ;;
    isa_neon.cpp) compile "$file" -march=armv8.2-a+dotprod ;;
    isa_neon_i8mm.cpp) compile "$file" -march=armv8.2-a+dotprod+i8mm ;;
    isa_*) ;; # of other machines
    *) compile "$file" ;;
  esac
done
compile "$here/check_isas.cpp"
aarch64-linux-gnu-g++ -static "$out"/*.o -o "$out/check_isas" -lpthread
# One CPU with everything, one with dot products only, one with neither: the right kernels are chosen on each.
for cpu in max:neon_i8mm neoverse-n1:neon cortex-a53:portable; do
  echo "== ${cpu%:*}"
  qemu-aarch64 -cpu "${cpu%:*}" "$out/check_isas" "${cpu#*:}"
done
