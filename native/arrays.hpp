// Numpy arrays as this side takes them: of one dtype, rank and order, and never converted, because
// a copy would hide a mistake and an output filled in a copy is lost.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "require.hpp"

namespace octavo {

namespace nb = nanobind;

template <class T, size_t Dims>
using Array = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using Ints = Array<const int32_t, 1>;
using Floats = Array<const float, 1>;
using Bytes = Array<const uint8_t, 1>;

template <class T>
std::string dtype_name() {
  const char* kind = std::is_floating_point_v<T> ? "float" : std::is_signed_v<T> ? "int" : "uint";
  return kind + std::to_string(8 * sizeof(T));
}

// Throws TypeError, saying what `name` has to be.
template <class T, size_t Dims>
Array<T, Dims> array_of(nb::handle value, const char* name) {
  Array<T, Dims> out;
  if (!nb::try_cast(value, out, false)) {
    const std::string writable = std::is_const_v<T> ? "" : "writable, ";
    const std::string what = std::string(name) + " must be a " + writable + "C-contiguous " +
                             dtype_name<std::remove_const_t<T>>() + " array of rank " +
                             std::to_string(Dims) + "; convert it before the call";
    throw nb::type_error(what.c_str());
  }
  return out;
}

template <class T, size_t Dims>
Array<T, Dims> array_in(nb::handle owner, const char* name) {
  return array_of<T, Dims>(owner.attr(name), name);
}

}  // namespace octavo
