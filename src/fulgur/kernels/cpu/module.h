// What the files of the Python module share: arrays as they come from numpy, and the checks of them.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "runtime.h"

namespace nb = nanobind;
using namespace fulgur;

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Halves = nb::ndarray<const uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Table8 = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using IntsOut = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

inline std::vector<const Ops*> available() {  // best first; the emulated one is for tests and never chosen
  std::vector<const Ops*> list;
  for (const Ops* ops : {ops_amx(), ops_avx512bf16(), ops_avx512(), ops_avxvnni(), ops_avx2(), ops_neon_i8mm(),
                         ops_neon(), ops_portable()})
    if (ops) list.push_back(ops);
  return list;
}

inline const Ops* find_ops(const std::string& name) {
  if (name.empty()) return available().front();
  for (const Ops* ops : available())
    if (name == ops->name) return ops;
  if (name == "amx_emulated" && ops_amx_emulated()) return ops_amx_emulated();
  throw std::invalid_argument("this CPU or build has no kernels named '" + name + "'");
}

inline void check_kind(const Matrix& m, const char* name) {
  if ((m.bits != 4 && m.bits != 8) || m.group < 32 || m.group % 32 || m.cols % m.group || m.rows <= 0)
    throw std::invalid_argument(std::string(name) +
                                ": bits must be 4 or 8 and group a multiple of 32 that divides the columns");
}

// A matrix in the file's layout; `data` still points into the file.
inline Matrix view(const Bytes& data, int bits, int group, int rows, int cols, const char* name) {
  Matrix m{data.data(), bits, group, rows, cols, 1};
  check_kind(m, name);
  if (data.size() != m.file_bytes())
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(data.size()) + " packed bytes, " +
                                std::to_string(m.file_bytes()) + " expected");
  return m;
}

void define_operations(nb::module_& m);  // operations.cpp
